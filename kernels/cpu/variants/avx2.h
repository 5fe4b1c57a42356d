/* Registers of 32 bytes: for CPUs without AVX512. */
#include "vectors.h"

INLINE Floats halves(const uint16_t *p) { return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const void *)p)); }

INLINE Floats bytes(const uint8_t *p) {
    return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p)));
}

INLINE Floats brains(const uint16_t *p) {
    return (Floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16);
}

INLINE Floats fused(Floats a, Floats b, Floats c) { return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }

INLINE __m256i quad(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    return _mm256_set1_epi32(four);
}

/* Before each half of the outputs: else the compiler keeps all quads of x for the other, of which registers hold few. */
#define FORGET(x) __asm__ volatile("" : "+r"(x))
