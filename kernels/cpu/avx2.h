/* Vectors of 32 bytes, two for 16 numbers: for CPUs without AVX512. */
typedef union {
    __m256i half[2];
    __m256 halves[2];
    I16 integers;
    F16 floats;
} Both;

INLINE F16 half16(const uint16_t *p) {
    Both found;
    for (int side = 0; side < 2; side++)
        found.halves[side] = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 8 * side)));
    return found.floats;
}

INLINE F16 bytes16(const uint8_t *p) {
    Both found;
    for (int side = 0; side < 2; side++)
        found.halves[side] = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(p + 8 * side))));
    return found.floats;
}

INLINE F16 brain16(const uint16_t *p) {
    Both found;
    for (int side = 0; side < 2; side++)
        found.half[side] = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(p + 8 * side))), 16);
    return found.floats;
}

INLINE F16 fused(F16 a, F16 b, F16 c) {
    const Both x = {.floats = a}, y = {.floats = b}, z = {.floats = c};
    Both found;
    for (int side = 0; side < 2; side++)
        found.halves[side] = _mm256_fmadd_ps(x.halves[side], y.halves[side], z.halves[side]);
    return found.floats;
}

INLINE __m256i quad(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    return _mm256_set1_epi32(four);
}

/* Before the other half of the outputs: else the compiler keeps all quads of x for it, of which registers hold few. */
#define FORGET(x) __asm__("" : "+r"(x))
