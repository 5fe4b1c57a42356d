/* The arithmetic, for one kind of CPU: a variant defines

     VARIANT             its name, `RUNS` the function that says whether this machine has its instructions
     LANES               numbers in a register: vectors.h
     BLOCK               rows of activations that are multiplied at once, so many as its registers hold
     WIDE                registers of columns of as many rows that attention takes at once
     halves, bytes       LANES float16, or bytes, as floats
     brains              LANES bfloat16 as floats
     fused(a, b, c)      a * b + c, rounded once where the CPU can
     dots4, dots8        of one group: LANES outputs of each of up to BLOCK rows; x is `width` bytes apart

   and includes this file. The compiler fuses no products and sums by itself: it would do so in some copies of a function
   only, and a row's result would depend on how many rows are next to it. */

/* The largest absolute value. NaN counts as large. */
static float largest(const float *x, int64_t count) {
    const int32_t most = largest_bits(x, count);
    float value;
    memcpy(&value, &most, 4);
    return value;
}

/* To the nearest integer, ties to even, as the low byte of the sum with 1.5 * 2^23. */
static void rounded(const float *x, int64_t count, float factor, int8_t *q) {
    for (int64_t i = 0; i < count; i++) {
        const float shifted = x[i] * factor + 12582912.0f;
        int32_t bits;
        memcpy(&bits, &shifted, 4);
        q[i] = (int8_t)bits;
    }
}

typedef struct {
    const float *x;
    int64_t columns, stride;
    const Quantized *out;
} Rounding;

static void round_rows(const void *with, int64_t from, int64_t end, int thread) {
    const Rounding *of = with;
    const Quantized *out = of->out;
    const int64_t columns = of->columns, groups = groups_of(columns);
    (void)thread;
    for (int64_t row = from; row < end; row++) {
        const float *x = of->x + row * of->stride;
        int8_t *q = out->q + row * out->width;
        float most = largest(x, columns);
        most = most < 1e-12f ? 1e-12f : most;
        out->scale[row] = most / 127;
        rounded(x, columns, 127 / most, q);
        memset(q + columns, 0, (size_t)(out->width - columns));
        for (int64_t group = 0; group < groups; group++, q += GROUP) {
            int32_t sum = 0;
            for (int i = 0; i < GROUP; i++) sum += q[i];
            out->sum[row * groups + group] = (float)sum;
        }
    }
}

/* Rows of x are `stride` floats apart. */
static void quantize(const float *x, int64_t rows, int64_t columns, int64_t stride, Quantized *out) {
    const Rounding of = {x, columns, stride, out};
    out->rows = rows;
    out->width = groups_of(columns) * GROUP;
    caesura_share(round_rows, &of, rows, columns / 4);
}

/* The scales of a group, from output `first` on, and what is added for each unit of a row's sum. */
INLINE Floats scale_of(const uint8_t *tile, Layout at, int64_t group, int first, const int form) {
    const int64_t number = group * OUTPUTS + first;
    const float *unit = (const float *)(tile + at.unit) + first;
    if (form == K4) return bytes(tile + at.scale + number) * floats_at(unit);
    return halves((const uint16_t *)(tile + at.scale) + number);
}

INLINE Floats least_of(const uint8_t *tile, Layout at, int64_t group, int first, const int form) {
    const int64_t number = group * OUTPUTS + first;
    const float *unit = (const float *)(tile + at.unit) + OUTPUTS + first;
    if (form == K4) return -bytes(tile + at.least + number) * floats_at(unit);
    return halves((const uint16_t *)(tile + at.least) + number);
}

INLINE void put(Floats value, float *out, int64_t wanted, int add) {
    if (wanted >= LANES) {
        *(FloatsAt *)out = add ? floats_at(out) + value : value;
        return;
    }
    float part[LANES];
    memcpy(part, &value, sizeof part);
    for (int64_t i = 0; i < wanted; i++) out[i] = add ? out[i] + part[i] : part[i];
}

/* Prefetches codes, also those of the next tile: the CPU alone stops reading ahead at each page of 4 KiB. The distance
   suits a core that reads 40 GB/s from memory with a latency of 200 ns. */
enum { AHEAD = 8192 };

INLINE void fetch(const uint8_t *from, int64_t size) {
    for (int64_t line = 0; line < size; line += 64) __builtin_prefetch(from + line);
}

/* A tile times `count` rows from `first` on. After inlining, `count` and `form` are constants. */
INLINE void tile_by_rows(const uint8_t *tile, Layout at, const int form, const Quantized *x, int64_t first,
                         const int count, float *out, int64_t stride, int64_t wanted, int add) {
    const int64_t groups = x->width / GROUP, size = form == Q8 ? 512 : 256; /* of a group's codes */
    const int8_t *q = x->q + first * x->width;
    const float *sum = x->sum + first * groups;
    Floats totals[SIDES][BLOCK];
    for (int side = 0; side < SIDES; side++)
        for (int row = 0; row < count; row++) totals[side][row] = all(0);
    for (int64_t group = 0; group < groups; group++) {
        fetch(tile + group * size + AHEAD, size);
        for (int side = 0; side < SIDES; side++) {
            const uint8_t *codes = tile + group * size + side * LANES * 4;
            Floats *total = totals[side];
            Ints dot[BLOCK];
            if (form == Q8)
                dots8(count, codes, q + group * GROUP, x->width, sum + group, groups, dot);
            else
                dots4(count, codes, q + group * GROUP, x->width, dot);
            const Floats scale = scale_of(tile, at, group, side * LANES, form);
            for (int row = 0; row < count; row++) total[row] = fused(floats(dot[row]), scale, total[row]);
            if (form == Q8) continue;
            const Floats least = least_of(tile, at, group, side * LANES, form);
            for (int row = 0; row < count; row++) total[row] = fused(least, all(sum[row * groups + group]), total[row]);
        }
    }
    for (int side = 0; side < SIDES; side++)
        for (int row = 0; row < count; row++)
            put(totals[side][row] * x->scale[first + row], out + (first + row) * stride + side * LANES,
                wanted - side * LANES, add);
}

/* With constant `form`: rows a block at a time, then frequent counts at once, others row by row. */
INLINE void tile_by_all(const uint8_t *tile, Layout at, const int form, const Quantized *x, float *out, int64_t stride,
                        int64_t wanted, int add) {
    int64_t first = 0;
#ifdef tile_by_many
    first = tile_by_many(tile, at, form, x, out, stride, wanted, add);
#endif
#define ROWS(count)                                                                        \
    for (; x->rows - first >= (count); first += (count))                                   \
    tile_by_rows(tile, at, form, x, first, (count), out, stride, wanted, add)
    ROWS(BLOCK);
#if BLOCK > 4
    ROWS(4);
#endif
    ROWS(2);
    ROWS(1);
#undef ROWS
}

typedef struct {
    const Matrix *matrix;
    const Quantized *x;
    float *out;
    int64_t stride;
    int add;
} Multiplying;

static void multiply_tiles(const void *with, int64_t from, int64_t end, int thread) {
    const Multiplying *of = with;
    const Matrix *matrix = of->matrix;
    const Layout at = layout_of(matrix->form, matrix->columns);
    (void)thread;
    for (int64_t number = from; number < end; number++) {
        const uint8_t *tile = matrix->tiles + number * at.size;
        float *out = of->out + number * OUTPUTS;
        const int64_t wanted = matrix->rows - number * OUTPUTS;
        switch (matrix->form) {
        case Q8: tile_by_all(tile, at, Q8, of->x, out, of->stride, wanted, of->add); break;
        case Q4: tile_by_all(tile, at, Q4, of->x, out, of->stride, wanted, of->add); break;
        default: tile_by_all(tile, at, K4, of->x, out, of->stride, wanted, of->add);
        }
    }
}

static void product(const Matrix *matrix, const Quantized *x, float *out, int64_t stride, int add) {
    const Multiplying of = {matrix, x, out, stride, add};
    const int64_t tiles = (matrix->rows + OUTPUTS - 1) / OUTPUTS, size = layout_of(matrix->form, matrix->columns).size;
    caesura_share(multiply_tiles, &of, tiles, (size + x->rows * matrix->columns) / 16);
}

#include "layers.h"
#include "scores.h"

#define JOINED(name) caesura_##name
#define NAMED(name) JOINED(name)
#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
const Variant NAMED(VARIANT) = {TEXT(VARIANT), RUNS, quantize, product, normalize, lane_bytes, through, best, weigh};
