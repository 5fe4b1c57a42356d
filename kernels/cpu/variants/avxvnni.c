/* CPUs with AVX-VNNI but without AVX512, such as laptops of Intel from Alder Lake on. An instruction adds the products of
   4 columns to 8 outputs. Weights are its unsigned side, activations its signed one. */
#include "cpu.h"
#include "target.h"

#if defined(__x86_64__)
#include <immintrin.h>
TARGETED("avx2,fma,f16c,avxvnni")

#define VARIANT avxvnni
#define RUNS runs
#define LANES 8
#define BLOCK 4
#define WIDE 2

#include "avx2.h"

static int runs(void) { return caesura_avx2.runs() && __builtin_cpu_supports("avxvnni"); }

/* Two sums for each row: one would wait for itself. */
INLINE void dots4(const int count, const uint8_t *group, const int8_t *x, int64_t width, Ints *dot) {
    const __m256i low = _mm256_set1_epi8(15);
    __m256i even[BLOCK], odd[BLOCK];
    FORGET(x);
    for (int row = 0; row < count; row++) even[row] = odd[row] = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
        const __m256i both = _mm256_loadu_si256((const void *)(group + 64 * i));
        const __m256i first = _mm256_and_si256(both, low);
        const __m256i second = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
        for (int row = 0; row < count; row++) {
            const int8_t *q = x + row * width + 4 * i;
            even[row] = _mm256_dpbusd_avx_epi32(even[row], first, quad(q));
            odd[row] = _mm256_dpbusd_avx_epi32(odd[row], second, quad(q + 16));
        }
    }
    for (int row = 0; row < count; row++) dot[row] = (Ints)_mm256_add_epi32(even[row], odd[row]);
}

/* The codes are signed: 128 is added to each, and 128 times the row's sum taken off. */
INLINE void dots8(const int count, const uint8_t *group, const int8_t *x, int64_t width, const float *sums,
                  int64_t groups, Ints *dot) {
    __m256i even[BLOCK], odd[BLOCK];
    FORGET(x);
    for (int row = 0; row < count; row++) {
        even[row] = _mm256_cvtps_epi32(_mm256_set1_ps(-128 * sums[row * groups]));
        odd[row] = _mm256_setzero_si256();
    }
    for (int i = 0; i < 8; i += 2) {
        const uint8_t *codes = group + 64 * i;
        const __m256i turn = _mm256_set1_epi8(-128);
        const __m256i first = _mm256_xor_si256(_mm256_loadu_si256((const void *)codes), turn);
        const __m256i second = _mm256_xor_si256(_mm256_loadu_si256((const void *)(codes + 64)), turn);
        for (int row = 0; row < count; row++) {
            const int8_t *q = x + row * width + 4 * i;
            even[row] = _mm256_dpbusd_avx_epi32(even[row], first, quad(q));
            odd[row] = _mm256_dpbusd_avx_epi32(odd[row], second, quad(q + 4));
        }
    }
    for (int row = 0; row < count; row++) dot[row] = (Ints)_mm256_add_epi32(even[row], odd[row]);
}

#include "generic.h"
TARGETED_END
#endif
