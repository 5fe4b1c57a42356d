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
#define BLOCK 4
#define WIDE 1

static int runs(void) {
#if defined(__linux__)
    return (getauxval(AT_HWCAP) & (1 << 20)) != 0; /* HWCAP_ASIMDDP */
#else
    return 1; /* every 64-bit ARM that runs macOS or Windows 11 has them */
#endif
}

typedef union {
    int32x4_t quarter[4];
    float32x4_t quarters[4];
    I16 integers;
    F16 floats;
} All;

INLINE F16 half16(const uint16_t *p) {
    All found;
    for (int part = 0; part < 4; part++)
        found.quarters[part] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * part)));
    return found.floats;
}

INLINE F16 bytes16(const uint8_t *p) {
    All found;
    for (int part = 0; part < 4; part++) {
        uint32_t four;
        memcpy(&four, p + 4 * part, 4);
        const uint16x8_t wide = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)));
        found.quarters[part] = vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide)));
    }
    return found.floats;
}

INLINE F16 brain16(const uint16_t *p) {
    All found;
    for (int part = 0; part < 4; part++)
        found.quarter[part] = vreinterpretq_s32_u32(vshll_n_u16(vld1_u16(p + 4 * part), 16));
    return found.floats;
}

INLINE F16 fused(F16 a, F16 b, F16 c) {
    const All x = {.floats = a}, y = {.floats = b}, z = {.floats = c};
    All found;
    for (int part = 0; part < 4; part++)
        found.quarters[part] = vfmaq_f32(z.quarters[part], x.quarters[part], y.quarters[part]);
    return found.floats;
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

INLINE void dots4(const int count, const uint8_t *group, const int8_t *x, int64_t width, I16 *out) {
    All found[BLOCK];
    for (int row = 0; row < count; row++) found[row].integers = (I16){0};
    for (int part = 0; part < 4; part++)
        for (int i = 0; i < 4; i++) {
            const uint8x16_t both = vld1q_u8(group + 64 * i + 16 * part);
            const int8x16_t first = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
            const int8x16_t second = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
            for (int row = 0; row < count; row++) {
                int32x4_t *sum = &found[row].quarter[part];
                *sum = dot(*sum, first, vld1q_s8(x + row * width), i);
                *sum = dot(*sum, second, vld1q_s8(x + row * width + 16), i);
            }
        }
    for (int row = 0; row < count; row++) out[row] = found[row].integers;
}

INLINE void dots8(const int count, const uint8_t *group, const int8_t *x, int64_t width, const float *sums,
                  int64_t groups, I16 *out) {
    All found[BLOCK];
    (void)sums, (void)groups;
    for (int row = 0; row < count; row++) found[row].integers = (I16){0};
    for (int part = 0; part < 4; part++)
        for (int i = 0; i < 8; i++) {
            const int8x16_t codes = vreinterpretq_s8_u8(vld1q_u8(group + 64 * i + 16 * part));
            for (int row = 0; row < count; row++) {
                int32x4_t *sum = &found[row].quarter[part];
                *sum = dot(*sum, codes, vld1q_s8(x + row * width + 16 * (i / 4)), i % 4);
            }
        }
    for (int row = 0; row < count; row++) out[row] = found[row].integers;
}

#include "generic.h"
TARGETED_END
#endif
