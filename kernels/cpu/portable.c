/* Any CPU: nothing but C. */
#include "cpu.h"

#define VARIANT portable
#define RUNS runs
#define BLOCK 4
#define WIDE 1

static int runs(void) { return 1; }

/* The exponent of a float16 counts from -15, that of a float from -127: a product with 2^112 moves it, of the smallest
   numbers too. There are no infinities among scales. */
INLINE F16 half16(const uint16_t *p) {
    float found[OUTPUTS];
    for (int i = 0; i < OUTPUTS; i++) {
        const uint32_t bits = (uint32_t)(p[i] & 0x7fff) << 13, sign = (uint32_t)(p[i] & 0x8000) << 16;
        float value;
        memcpy(&value, &bits, 4);
        value *= 0x1p112f;
        found[i] = sign ? -value : value;
    }
    F16 out;
    memcpy(&out, found, sizeof out);
    return out;
}

INLINE F16 bytes16(const uint8_t *p) {
    F16 out;
    for (int i = 0; i < OUTPUTS; i++) out[i] = (float)p[i];
    return out;
}

INLINE F16 brain16(const uint16_t *p) {
    I16 out;
    for (int i = 0; i < OUTPUTS; i++) out[i] = (int32_t)((uint32_t)p[i] << 16);
    return (F16)out;
}

INLINE F16 fused(F16 a, F16 b, F16 c) { return a * b + c; }

/* A quad of columns of 16 outputs. */
INLINE void add_quad(int32_t *sum, const int8_t *codes, const int8_t *x) {
    for (int n = 0; n < OUTPUTS; n++)
        for (int column = 0; column < 4; column++) sum[n] += codes[4 * n + column] * x[column];
}

INLINE void dots4(const int count, const uint8_t *group, const int8_t *x, int64_t width, I16 *dot) {
    int32_t sum[BLOCK][OUTPUTS] = {0};
    for (int i = 0; i < 4; i++) {
        int8_t first[64], second[64];
        for (int at = 0; at < 64; at++) {
            first[at] = (int8_t)(group[64 * i + at] & 15);
            second[at] = (int8_t)(group[64 * i + at] >> 4);
        }
        for (int row = 0; row < count; row++) {
            add_quad(sum[row], first, x + row * width + 4 * i);
            add_quad(sum[row], second, x + row * width + 4 * i + 16);
        }
    }
    for (int row = 0; row < count; row++) memcpy(dot + row, sum[row], sizeof *dot);
}

INLINE void dots8(const int count, const uint8_t *group, const int8_t *x, int64_t width, const float *sums,
                  int64_t groups, I16 *dot) {
    int32_t sum[BLOCK][OUTPUTS] = {0};
    (void)sums, (void)groups;
    for (int i = 0; i < 8; i++)
        for (int row = 0; row < count; row++)
            add_quad(sum[row], (const int8_t *)group + 64 * i, x + row * width + 4 * i);
    for (int row = 0; row < count; row++) memcpy(dot + row, sum[row], sizeof *dot);
}

#include "generic.h"
