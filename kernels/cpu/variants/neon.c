/* 64-bit ARM with the dot product instructions: Apple from M1 on, Arm from Cortex-A76 on. */
#include "cpu.h"
#include "target.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif
TARGETED("arch=armv8.2-a+dotprod")

#define VARIANT neon
#define RUNS runs
#define LANES 4
#define BLOCK 4
#define WIDE 4

#include "vectors.h"

static int runs(void) {
#if defined(__linux__)
    return (getauxval(AT_HWCAP) & (1 << 20)) != 0; /* HWCAP_ASIMDDP */
#else
    return 1; /* every 64-bit ARM that runs macOS or Windows 11 has them */
#endif
}

INLINE Floats halves(const uint16_t *p) { return (Floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }

INLINE Floats bytes(const uint8_t *p) {
    uint32_t four;
    memcpy(&four, p, 4);
    const uint16x8_t wide = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)));
    return (Floats)vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide)));
}

INLINE Floats brains(const uint16_t *p) { return (Floats)vshll_n_u16(vld1_u16(p), 16); }

INLINE Floats fused(Floats a, Floats b, Floats c) {
    return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}

/* Four quads of x, of which `dot` takes one each. */
INLINE int32x4_t dot(int32x4_t sum, int8x16_t codes, int8x16_t x, const int number) {
    switch (number) {
    case 0: return vdotq_laneq_s32(sum, codes, x, 0);
    case 1: return vdotq_laneq_s32(sum, codes, x, 1);
    case 2: return vdotq_laneq_s32(sum, codes, x, 2);
    default: return vdotq_laneq_s32(sum, codes, x, 3);
    }
}

INLINE void dots4(const int count, const uint8_t *group, const int8_t *x, int64_t width, Ints *out) {
    int32x4_t sum[BLOCK];
    for (int row = 0; row < count; row++) sum[row] = vdupq_n_s32(0);
    for (int i = 0; i < 4; i++) {
        const uint8x16_t both = vld1q_u8(group + 64 * i);
        const int8x16_t first = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
        const int8x16_t second = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
        for (int row = 0; row < count; row++) {
            sum[row] = dot(sum[row], first, vld1q_s8(x + row * width), i);
            sum[row] = dot(sum[row], second, vld1q_s8(x + row * width + 16), i);
        }
    }
    for (int row = 0; row < count; row++) out[row] = (Ints)sum[row];
}

INLINE void dots8(const int count, const uint8_t *group, const int8_t *x, int64_t width, const float *sums,
                  int64_t groups, Ints *out) {
    int32x4_t sum[BLOCK];
    (void)sums, (void)groups;
    for (int row = 0; row < count; row++) sum[row] = vdupq_n_s32(0);
    for (int i = 0; i < 8; i++) {
        const int8x16_t codes = vreinterpretq_s8_u8(vld1q_u8(group + 64 * i));
        for (int row = 0; row < count; row++)
            sum[row] = dot(sum[row], codes, vld1q_s8(x + row * width + 16 * (i / 4)), i % 4);
    }
    for (int row = 0; row < count; row++) out[row] = (Ints)sum[row];
}

#include "generic.h"
TARGETED_END
#endif
