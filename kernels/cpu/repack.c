/* Rows of matrices as they lie in files -> floats, or tiles in one pass: the block formats of GGUF, and plain floats.

   A block has 32 or 256 columns: codes and scales (llama.cpp's `ggml-common.h` has their layouts). Types whose groups are
   ours keep their codes: Q8_0 becomes Q8; Q4_0, Q4_1 and Q4_K become Q4, the last with its scales and minima rounded to
   float16. All others become floats, and those Q8: the largest of 32 columns gets the code 127. */
#include "cpu.h"

enum { F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, BF16 = 30 };
enum { LARGE = 256 }; /* columns of the largest block */

/* ---- float16 */

INLINE float from_half(const uint8_t *at) {
    uint16_t half;
    memcpy(&half, at, 2);
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    const float small = (float)(int32_t)rest * 0x1p-24f; /* if it is subnormal */
    uint32_t bits;
    memcpy(&bits, &small, 4);
    bits = sign | (rest < 0x400 ? bits : (rest << 13) + (rest < 0x7c00 ? 112u << 23 : 224u << 23));
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* To the nearest, ties to even; too large ones become infinite. */
static uint16_t to_half(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    const uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size >= 0x477ff000) return (uint16_t)(sign | (size > 0x7f800000 ? 0x7e00 : 0x7c00));
    if (size >= 0x38800000) return (uint16_t)(sign | (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13);
    const float small = (value < 0 ? -value : value) * 0x1p24f + 8388608.0f; /* subnormal: a multiple of 2 to -24 */
    memcpy(&bits, &small, 4);
    return (uint16_t)(sign | (bits & 0x7ff));
}

static int a_number(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

/* ---- blocks -> floats */

static void floats_f32(const uint8_t *from, float *out) { memcpy(out, from, GROUP * 4); }

static void floats_f16(const uint8_t *from, float *out) {
    for (int i = 0; i < GROUP; i++) out[i] = from_half(from + 2 * i);
}

static void floats_bf16(const uint8_t *from, float *out) {
    for (int i = 0; i < GROUP; i++) {
        const uint32_t bits = (uint32_t)from[2 * i] << 16 | (uint32_t)from[2 * i + 1] << 24;
        memcpy(out + i, &bits, 4);
    }
}

static void floats_q8_0(const uint8_t *from, float *out) {
    const float scale = from_half(from);
    for (int i = 0; i < GROUP; i++) out[i] = scale * (float)(int8_t)from[2 + i];
}

static void floats_q4_0(const uint8_t *from, float *out) {
    const float scale = from_half(from);
    for (int i = 0; i < 16; i++) {
        out[i] = scale * (float)((from[2 + i] & 15) - 8);
        out[16 + i] = scale * (float)((from[2 + i] >> 4) - 8);
    }
}

static void floats_q4_1(const uint8_t *from, float *out) {
    const float scale = from_half(from), least = from_half(from + 2);
    for (int i = 0; i < 16; i++) {
        out[i] = scale * (float)(from[4 + i] & 15) + least;
        out[16 + i] = scale * (float)(from[4 + i] >> 4) + least;
    }
}

/* The codes of 5 bits: `high` has the last bit of each column. */
INLINE void fives(const uint8_t *high, const uint8_t *low, int *codes) {
    const uint32_t bits = high[0] | (uint32_t)high[1] << 8 | (uint32_t)high[2] << 16 | (uint32_t)high[3] << 24;
    for (int i = 0; i < 16; i++) {
        codes[i] = (low[i] & 15) | (bits >> i & 1) << 4;
        codes[16 + i] = low[i] >> 4 | (bits >> (16 + i) & 1) << 4;
    }
}

static void floats_q5_0(const uint8_t *from, float *out) {
    const float scale = from_half(from);
    int codes[GROUP];
    fives(from + 2, from + 6, codes);
    for (int i = 0; i < GROUP; i++) out[i] = scale * (float)(codes[i] - 16);
}

static void floats_q5_1(const uint8_t *from, float *out) {
    const float scale = from_half(from), least = from_half(from + 2);
    int codes[GROUP];
    fives(from + 4, from + 8, codes);
    for (int i = 0; i < GROUP; i++) out[i] = scale * (float)codes[i] + least;
}

/* Scale and minimum of group 0 to 7, 6 bits each, of the 12 bytes in Q4_K and Q5_K. The first four groups take 6 bits
   of a byte; the last four take a nibble of the last four bytes, and the 2 bits that the first four left. */
INLINE void sixes(const uint8_t *packed, int group, int *scale, int *least) {
    const int i = group & 3;
    *scale = group < 4 ? packed[i] & 63 : (packed[8 + i] & 15) | packed[i] >> 6 << 4;
    *least = group < 4 ? packed[4 + i] & 63 : packed[8 + i] >> 4 | packed[4 + i] >> 6 << 4;
}

/* Q4_K, and Q5_K where there are `high` bits. */
INLINE void floats_k(const uint8_t *from, const uint8_t *high, const uint8_t *low, float *out) {
    const float unit = from_half(from), offset = from_half(from + 2);
    for (int group = 0; group < 8; group++) {
        int scale, least;
        sixes(from + 4, group, &scale, &least);
        const float step = unit * (float)scale, below = offset * (float)least;
        const uint8_t *codes = low + group / 2 * GROUP;
        for (int i = 0; i < GROUP; i++) {
            const int code = group & 1 ? codes[i] >> 4 : codes[i] & 15;
            out[group * GROUP + i] = step * (float)(high ? code | (high[i] >> group & 1) << 4 : code) - below;
        }
    }
}

static void floats_q4_k(const uint8_t *from, float *out) { floats_k(from, 0, from + 16, out); }

static void floats_q5_k(const uint8_t *from, float *out) { floats_k(from, from + 16, from + 48, out); }

static void floats_q6_k(const uint8_t *from, float *out) {
    const float unit = from_half(from + 208);
    for (int part = 0; part < 8; part++) { /* 32 columns each: two halves of four */
        const int half = part / 4, quarter = part % 4;
        const uint8_t *low = from + 64 * half + 32 * (quarter & 1), *high = from + 128 + 32 * half;
        for (int side = 0; side < 2; side++) {
            const float step = unit * (float)(int8_t)from[192 + 2 * part + side];
            for (int i = 16 * side; i < 16 * side + 16; i++) {
                const int code = (quarter < 2 ? low[i] & 15 : low[i] >> 4) | (high[i] >> (2 * quarter) & 3) << 4;
                out[GROUP * part + i] = step * (float)(code - 32);
            }
        }
    }
}

typedef struct {
    int64_t number, columns, bytes; /* of a block */
    void (*floats)(const uint8_t *from, float *out);
} Kind;

static const Kind KINDS[] = {
    {F32, 32, 128, floats_f32},   {F16, 32, 64, floats_f16},    {BF16, 32, 64, floats_bf16},
    {Q8_0, 32, 34, floats_q8_0},  {Q4_0, 32, 18, floats_q4_0},  {Q4_1, 32, 20, floats_q4_1},
    {Q5_0, 32, 22, floats_q5_0},  {Q5_1, 32, 24, floats_q5_1},  {Q4_K, 256, 144, floats_q4_k},
    {Q5_K, 256, 176, floats_q5_k}, {Q6_K, 256, 210, floats_q6_k},
};

static const Kind *kind_of(int64_t number) {
    const Kind *kind = KINDS;
    while (kind->number != number) kind++;
    return kind;
}

/* The floats of a block; the last one of a row of plain floats may have fewer columns, and zeros after them. */
INLINE void floats_of(const Kind *kind, const uint8_t *from, int64_t left, float *out) {
    uint8_t padded[128] = {0};
    if (left < kind->columns) from = memcpy(padded, from, (size_t)(left * kind->bytes / kind->columns));
    kind->floats(from, out);
}

enum { ENDLESS = 0x7f800000 }; /* the bits of infinity; NaN's are greater */

/* Rows that are `stride` bytes apart -> out [rows, columns]. Returns whether all are numbers. */
EXPORT int caesura_restore(int64_t number, int64_t rows, int64_t columns, const uint8_t *from, int64_t stride, float *out) {
    const Kind *kind = kind_of(number);
    int good = 1;
    for (int64_t row = 0; row < rows; row++, from += stride, out += columns) {
        const uint8_t *block = from;
        for (int64_t at = 0; at < columns; at += kind->columns, block += kind->bytes) {
            const int64_t left = columns - at;
            float values[LARGE];
            floats_of(kind, block, left, values);
            memcpy(out + at, values, (size_t)(left < kind->columns ? left : kind->columns) * 4);
        }
        good &= largest_bits(out, columns) < ENDLESS;
    }
    return good;
}

/* ---- blocks -> a row of a tile */

/* The nearest codes of a group of floats, as engine/weights/stored.py has them. Returns whether all are numbers, and
   small enough for a scale. */
static int group_of_floats(const float *x, uint8_t *codes, uint8_t *scales, int64_t lane) {
    const int32_t bits = largest_bits(x, GROUP);
    float most;
    memcpy(&most, &bits, 4);
    most /= 127;
    const uint16_t half = to_half(most < 1e-7f ? 1e-7f : most);
    const float scale = from_half((const uint8_t *)&half);
    int8_t rounded[GROUP];
    for (int i = 0; i < GROUP; i++) {
        const float shifted = x[i] / scale + 12582912.0f; /* 1.5 * 2 to 23: to the nearest, ties to even */
        int32_t code;
        memcpy(&code, &shifted, 4);
        code -= 0x4b400000;
        code = code > 127 ? 127 : code < -127 ? -127 : code;
        rounded[i] = (int8_t)code;
    }
    for (int quad = 0; quad < 8; quad++) memcpy(codes + 64 * quad + 4 * lane, rounded + 4 * quad, 4);
    memcpy(scales + 2 * lane, &half, 2);
    return (bits < ENDLESS) & a_number(half);
}

static int group_of_q8_0(const uint8_t *from, uint8_t *codes, uint8_t *scales, int64_t lane) {
    for (int quad = 0; quad < 8; quad++) memcpy(codes + 64 * quad + 4 * lane, from + 2 + 4 * quad, 4);
    memcpy(scales + 2 * lane, from, 2);
    return a_number((uint16_t)(from[0] | from[1] << 8));
}

/* The nibbles of 16 bytes, the low ones columns 0 to 15: as in a tile. */
INLINE void nibbles(const uint8_t *from, uint8_t *codes, int64_t lane) {
    for (int quad = 0; quad < 4; quad++) memcpy(codes + 64 * quad + 4 * lane, from + 4 * quad, 4);
}

static int scales_of(uint16_t scale, uint16_t least, uint8_t *scales, uint8_t *minima, int64_t lane) {
    memcpy(scales + 2 * lane, &scale, 2);
    memcpy(minima + 2 * lane, &least, 2);
    return a_number(scale) & a_number(least);
}

/* Eight groups; a nibble of each of 32 bytes is a column. */
static int groups_of_q4_k(const uint8_t *from, uint8_t *codes, uint8_t *scales, uint8_t *minima, int64_t lane) {
    const float unit = from_half(from), offset = from_half(from + 2);
    int good = 1;
    for (int group = 0; group < 8; group++, codes += 256, scales += 2 * OUTPUTS, minima += 2 * OUTPUTS) {
        const uint8_t *both = from + 16 + group / 2 * GROUP;
        uint8_t joined[16];
        for (int i = 0; i < 16; i++)
            joined[i] = group & 1 ? (uint8_t)(both[i] >> 4 | (both[16 + i] & 0xf0))
                                  : (uint8_t)((both[i] & 15) | both[16 + i] << 4);
        nibbles(joined, codes, lane);
        int scale, least;
        sixes(from + 4, group, &scale, &least);
        good &= scales_of(to_half(unit * (float)scale), to_half(-offset * (float)least), scales, minima, lane);
    }
    return good;
}

/* The form of a kind in tiles. */
EXPORT int64_t caesura_form(int64_t number) {
    return number == Q4_0 || number == Q4_1 || number == Q4_K ? Q4 : Q8;
}

/* A block into its row of a tile, from `group` on. */
static int place(const Kind *kind, const uint8_t *from, int64_t left, int64_t group, uint8_t *tile, Layout at, int64_t lane) {
    uint8_t *scales = tile + at.scale + group * 2 * OUTPUTS, *minima = tile + at.least + group * 2 * OUTPUTS;
    uint8_t *codes = tile + group * (caesura_form(kind->number) == Q8 ? 512 : 256);
    float values[LARGE];
    int good = 1;
    switch (kind->number) {
    case Q8_0: return group_of_q8_0(from, codes, scales, lane);
    case Q4_0:
        nibbles(from + 2, codes, lane);
        return scales_of((uint16_t)(from[0] | from[1] << 8), to_half(-8 * from_half(from)), scales, minima, lane);
    case Q4_1:
        nibbles(from + 4, codes, lane);
        return scales_of((uint16_t)(from[0] | from[1] << 8), (uint16_t)(from[2] | from[3] << 8), scales, minima, lane);
    case Q4_K: return groups_of_q4_k(from, codes, scales, minima, lane);
    }
    floats_of(kind, from, left, values);
    for (int64_t i = 0; i < kind->columns / GROUP; i++)
        good &= group_of_floats(values + GROUP * i, codes + 512 * i, scales + 2 * OUTPUTS * i, lane);
    return good;
}

/* Rows that are `stride` bytes apart -> rows from `first` on of the tiles of a matrix, which are all zeros. Returns
   whether all weights, or the scales of codes that are kept, are numbers. */
EXPORT int caesura_repack(int64_t number, int64_t rows, int64_t columns, const uint8_t *from, int64_t stride, int64_t first,
                          uint8_t *tiles) {
    const Kind *kind = kind_of(number);
    const Layout at = layout_of(caesura_form(number), columns);
    int good = 1;
    for (int64_t row = first; row < first + rows; row++, from += stride) {
        uint8_t *tile = tiles + row / OUTPUTS * at.size;
        const uint8_t *block = from;
        for (int64_t column = 0; column < columns; column += kind->columns, block += kind->bytes)
            good &= place(kind, block, columns - column, column / GROUP, tile, at, row % OUTPUTS);
    }
    return good;
}
