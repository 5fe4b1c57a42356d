/* Any CPU: nothing but C. */
#include "cpu.h"

#define VARIANT portable
#define RUNS runs
#define LANES 16
#define BLOCK 4
#define WIDE 1

#include "vectors.h"

static int runs(void) { return 1; }

/* The exponent of a float16 counts from -15, that of a float from -127: a product with 2^112 moves it, of the smallest
   numbers too. There are no infinities among scales. */
INLINE Floats halves(const uint16_t *p) {
    float found[LANES];
    for (int i = 0; i < LANES; i++) {
        const uint32_t bits = (uint32_t)(p[i] & 0x7fff) << 13, sign = (uint32_t)(p[i] & 0x8000) << 16;
        float value;
        memcpy(&value, &bits, 4);
        value *= 0x1p112f;
        found[i] = sign ? -value : value;
    }
    Floats out;
    memcpy(&out, found, sizeof out);
    return out;
}

INLINE Floats bytes(const uint8_t *p) {
    Floats out;
    for (int i = 0; i < LANES; i++) out[i] = (float)p[i];
    return out;
}

INLINE Floats brains(const uint16_t *p) {
    Ints out;
    for (int i = 0; i < LANES; i++) out[i] = (int32_t)((uint32_t)p[i] << 16);
    return (Floats)out;
}

INLINE Floats fused(Floats a, Floats b, Floats c) { return a * b + c; }

/* A quad of columns. */
INLINE void add_quad(int32_t *sum, const int8_t *codes, const int8_t *x) {
    for (int n = 0; n < LANES; n++)
        for (int column = 0; column < 4; column++) sum[n] += codes[4 * n + column] * x[column];
}

INLINE void dots4(const int count, const uint8_t *group, const int8_t *x, int64_t width, Ints *dot) {
    int32_t sum[BLOCK][LANES] = {0};
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
                  int64_t groups, Ints *dot) {
    int32_t sum[BLOCK][LANES] = {0};
    (void)sums, (void)groups;
    for (int i = 0; i < 8; i++)
        for (int row = 0; row < count; row++)
            add_quad(sum[row], (const int8_t *)group + 64 * i, x + row * width + 4 * i);
    for (int row = 0; row < count; row++) memcpy(dot + row, sum[row], sizeof *dot);
}

#include "generic.h"
