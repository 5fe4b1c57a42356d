/* CPUs with AVX2. Products of an unsigned and a signed byte are added in pairs in 16 bits. A group of 4-bit weights
   fits (8 * 2 * 15 * 127 < 32768). 8-bit weights are multiplied by absolute value, a quad at a time. */
#include "cpu.h"
#include "target.h"

#if defined(__x86_64__)
#include <immintrin.h>
TARGETED("avx2,fma,f16c")

#define VARIANT avx2
#define RUNS runs
#define LANES 8
#define BLOCK 4
#define WIDE 2

#include "avx2.h"

static int runs(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

INLINE void dots4(const int count, const uint8_t *group, const int8_t *x, int64_t width, Ints *dot) {
    const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    __m256i sum[BLOCK];
    FORGET(x);
    for (int row = 0; row < count; row++) sum[row] = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
        const __m256i both = _mm256_loadu_si256((const void *)(group + 64 * i));
        const __m256i first = _mm256_and_si256(both, low);
        const __m256i second = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
        for (int row = 0; row < count; row++) {
            const int8_t *q = x + row * width + 4 * i;
            sum[row] = _mm256_add_epi16(sum[row], _mm256_maddubs_epi16(first, quad(q)));
            sum[row] = _mm256_add_epi16(sum[row], _mm256_maddubs_epi16(second, quad(q + 16)));
        }
    }
    for (int row = 0; row < count; row++) dot[row] = (Ints)_mm256_madd_epi16(sum[row], ones);
}

INLINE void dots8(const int count, const uint8_t *group, const int8_t *x, int64_t width, const float *sums,
                  int64_t groups, Ints *dot) {
    const __m256i ones = _mm256_set1_epi16(1);
    (void)sums, (void)groups;
    __m256i sum[BLOCK];
    FORGET(x);
    for (int row = 0; row < count; row++) sum[row] = _mm256_setzero_si256();
    for (int i = 0; i < 8; i++) {
        const __m256i codes = _mm256_loadu_si256((const void *)(group + 64 * i));
        const __m256i size = _mm256_abs_epi8(codes);
        for (int row = 0; row < count; row++) {
            const __m256i signs = _mm256_sign_epi8(quad(x + row * width + 4 * i), codes);
            sum[row] = _mm256_add_epi32(sum[row], _mm256_madd_epi16(_mm256_maddubs_epi16(size, signs), ones));
        }
    }
    for (int row = 0; row < count; row++) dot[row] = (Ints)sum[row];
}

#include "generic.h"
TARGETED_END
#endif
