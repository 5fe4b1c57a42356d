/* Groups of weights with AVX512-VNNI: an instruction adds the products of 4 columns to 16 outputs. Weights are its
   unsigned side, activations its signed one. */
#include "vectors.h"

INLINE Floats halves(const uint16_t *p) { return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)p)); }

INLINE Floats bytes(const uint8_t *p) {
    return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p)));
}

INLINE Floats brains(const uint16_t *p) {
    return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16);
}

INLINE Floats fused(Floats a, Floats b, Floats c) { return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }

INLINE __m512i quad(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    return _mm512_set1_epi32(four);
}

/* Two sums of four quads each: one would wait for itself. */
INLINE Ints dot_of(const __m512i *codes, const int8_t *x, __m512i start) {
    __m512i even = start, odd = _mm512_setzero_si512();
    for (int i = 0; i < 8; i += 2) {
        even = _mm512_dpbusd_epi32(even, codes[i], quad(x + 4 * i));
        odd = _mm512_dpbusd_epi32(odd, codes[i + 1], quad(x + 4 * i + 4));
    }
    return (Ints)_mm512_add_epi32(even, odd);
}

INLINE void dots4(const int count, const uint8_t *group, const int8_t *x, int64_t width, Ints *dot) {
    const __m512i low = _mm512_set1_epi8(15);
    __m512i codes[8];
    for (int i = 0; i < 4; i++) {
        const __m512i both = _mm512_loadu_si512(group + 64 * i);
        codes[i] = _mm512_and_si512(both, low);
        codes[i + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
    for (int row = 0; row < count; row++) dot[row] = dot_of(codes, x + row * width, _mm512_setzero_si512());
}

/* Adds 128 to each signed code, and subtracts 128 times the row's sum. */
INLINE void dots8(const int count, const uint8_t *group, const int8_t *x, int64_t width, const float *sum,
                  int64_t groups, Ints *dot) {
    __m512i codes[8];
    for (int i = 0; i < 8; i++)
        codes[i] = _mm512_xor_si512(_mm512_loadu_si512(group + 64 * i), _mm512_set1_epi8(-128));
    for (int row = 0; row < count; row++) {
        const __m512i start = _mm512_cvtps_epi32(_mm512_set1_ps(-128 * sum[row * groups]));
        dot[row] = dot_of(codes, x + row * width, start);
    }
}
