/* Random shapes through every variant that this machine has, each buffer exactly as large as it must be. Each variant's
   result is that of plain C up to rounding. Built with the library's own files by tests/kernels/test_cpu.py, also for ARM.

   cpu_shapes ROUNDS SEED: the names of the variants, or what differed and exit code 1. */
#include "../../kernels/cpu/cpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(_WIN32)
#include <malloc.h>
#define posix_memalign(found, alignment, bytes) (!(*(found) = _aligned_malloc(bytes, alignment)))
#define free _aligned_free
#endif

const Variant *caesura_variant(int number);
const char *caesura_name(const Variant *variant);
int64_t caesura_packed_bytes(int64_t form, int64_t rows, int64_t columns);
void caesura_pack(int64_t form, int64_t rows, int64_t columns, const uint8_t *codes, const uint8_t *scale,
                  const uint8_t *least, const float *unit, uint8_t *tiles);
int64_t caesura_form(int64_t number);
int caesura_repack(int64_t number, int64_t rows, int64_t columns, const uint8_t *from, int64_t stride, int64_t first,
                   uint8_t *tiles);
int caesura_restore(int64_t number, int64_t rows, int64_t columns, const uint8_t *from, int64_t stride, float *out);
int64_t caesura_work_bytes(int64_t rows, int64_t columns);
void caesura_threads(int count);
void caesura_product(const Variant *variant, const Matrix *const *matrices, int64_t count, const float *x, int64_t rows,
                     int64_t columns, float *out, uint8_t *work);

static uint64_t state;

static uint32_t draw(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static int64_t from(int64_t least, int64_t most) { return least + draw() % (most - least + 1); }

static void *memory(int64_t bytes) {
    void *found = 0;
    if (posix_memalign(&found, 64, (size_t)(bytes ? bytes : 1))) exit(2);
    memset(found, 0, (size_t)bytes);
    return found;
}

static float *numbers(int64_t count, float size) {
    float *found = memory(count * 4);
    for (int64_t i = 0; i < count; i++) found[i] = size * ((float)draw() / 1073741824.0f - 1);
    return found;
}

static uint8_t *bytes(int64_t count, int most) {
    uint8_t *found = memory(count);
    for (int64_t i = 0; i < count; i++) found[i] = (uint8_t)(draw() % (uint32_t)(most + 1));
    return found;
}

/* float16 of about `size`, 0.001 to 0.01. */
static uint8_t *halves(int64_t count) {
    uint16_t *found = memory(count * 2);
    for (int64_t i = 0; i < count; i++) found[i] = (uint16_t)(0x1400 + draw() % 0x0c00);
    return (uint8_t *)found;
}

static Matrix *matrix(int64_t rows, int64_t columns) {
    const int64_t form = from(Q8, K4), padded = groups_of(columns) * GROUP, groups = padded / GROUP * rows;
    uint8_t *codes = bytes(rows * padded / (form == Q8 ? 1 : 2), 255);
    for (int64_t i = 0; form == Q8 && i < rows * padded; i++) codes[i] = codes[i] == 128 ? 0 : codes[i];
    uint8_t *scale = form == K4 ? bytes(groups, 255) : halves(groups);
    uint8_t *least = form == Q8 ? 0 : form == K4 ? bytes(groups, 255) : halves(groups);
    float *unit = form == K4 ? numbers(2 * rows, 1e-4f) : 0;
    uint8_t *tiles = memory(caesura_packed_bytes(form, rows, padded));
    Matrix *found = memory(sizeof *found);
    caesura_pack(form, rows, padded, codes, scale, least, unit, tiles);
    *found = (Matrix){rows, padded, form, tiles};
    free(codes), free(scale), free(least), free(unit);
    return found;
}

/* Ends the process where two results are further apart than `share` of the largest number. */
static void compare(const char *what, const Variant *variant, const float *found, const float *expected, int64_t count,
                    float share) {
    float most = 1e-6f, off = 0;
    for (int64_t i = 0; i < count; i++) {
        most = fmaxf(most, fabsf(expected[i]));
        off = isfinite(found[i]) ? fmaxf(off, fabsf(found[i] - expected[i])) : INFINITY;
    }
    if (off <= share * most) return;
    printf("%s of %s: %g of %g apart\n", what, caesura_name(variant), off, most);
    exit(1);
}

static void product_of_a_random_shape(int variants) {
    const int64_t rows = from(1, 40), columns = from(1, 400), count = from(1, 2);
    const int64_t most = draw() % 32 ? 70 : 2000; /* the larger ones are shared by two threads */
    const Matrix *both[2] = {matrix(from(1, most), columns), matrix(from(1, most), columns)};
    const int64_t wide = both[0]->rows + (count > 1 ? both[1]->rows : 0);
    float *x = numbers(rows * columns, 2), *plain = 0;
    for (int number = variants - 1; number >= 0; number--) {
        float *out = memory(rows * wide * 4);
        uint8_t *work = memory(caesura_work_bytes(rows, columns));
        caesura_product(caesura_variant(number), both, count, x, rows, columns, out, work);
        if (plain) compare("product", caesura_variant(number), out, plain, rows * wide, 2e-3f);
        free(work);
        if (plain) free(out);
        plain = plain ? plain : out;
    }
    for (int i = 0; i < 2; i++) free((void *)both[i]->tiles), free((void *)both[i]);
    free(x), free(plain);
}

/* A matrix in a format of files, of rows that lie together: into the middle of tiles, and to floats. */
static void blocks_of_a_random_shape(void) {
    static const int64_t kinds[][3] = {{0, 1, 4},    {1, 1, 2},    {30, 1, 2},     {2, 32, 18},    {3, 32, 20},   {6, 32, 22},
                                       {7, 32, 24},  {8, 32, 34},  {12, 256, 144}, {13, 256, 176}, {14, 256, 210}};
    const int64_t *kind = kinds[draw() % 11], rows = from(1, 40), first = from(0, 20), wide = kind[1];
    const int64_t columns = wide * from(1, wide == 1 ? 300 : 4), stride = columns / wide * kind[2];
    uint8_t *stored = bytes(rows * stride, 255), *tiles = memory(caesura_packed_bytes(caesura_form(kind[0]), first + rows, columns));
    float *values = memory(rows * columns * 4);
    caesura_repack(kind[0], rows, columns, stored, stride, first, tiles);
    caesura_restore(kind[0], rows, columns, stored, stride, values);
    free(stored), free(tiles), free(values);
}

static Product product_of(int64_t rows, int64_t columns, int64_t rank) {
    const Matrix **parts = memory(2 * sizeof *parts);
    const int64_t first = draw() % 2 ? rows : from(1, rows - 1);
    Product found = {parts, 1 + (first < rows), 0, 0, draw() % 2 ? numbers(rows, 0.1f) : 0};
    parts[0] = matrix(first, columns);
    if (first < rows) parts[1] = matrix(rows - first, columns);
    if (rank) found.down = matrix(rank, columns), found.up = matrix(rows, rank);
    return found;
}

static Norm norm_of(int64_t size, int some) {
    Norm found = {0, 0};
    if (some) found.weight = numbers(size, 1);
    if (some && draw() % 2) found.bias = numbers(size, 1);
    return found;
}

static void lane_of_a_random_shape(int variants) {
    const int64_t groups = from(1, 2), width = 16 * from(1, 4), heads = 2 * groups * from(1, 3), rank = from(0, 1) * 8;
    const Shape shape = {32 * from(1, 4), heads, groups, width, 32 * from(1, 5), rank, 1e-5f, (int)from(0, 1)};
    const int64_t rows = from(1, 36), at = from(0, 50), capacity = (at + rows + 15) / 16 * 16, masked = from(rows, rows + at);
    const int64_t shared = 2 * width * groups;
    Layer layers[2];
    for (int i = 0; i < 2; i++)
        layers[i] = (Layer){norm_of(shape.hidden, 1), product_of(heads * width + shared, shape.hidden, rank),
                            norm_of(width, rank > 0), norm_of(width, rank > 0),
                            product_of(shape.hidden, heads * width, rank), norm_of(shape.hidden, 1),
                            product_of((1 + shape.gated) * shape.inner, shape.hidden, rank),
                            product_of(shape.hidden, shape.inner, rank)};
    uint8_t *mask = bytes(rows * masked, 1);
    for (int64_t row = 0; row < rows; row++) mask[row * masked + masked - rows + row] = 1;
    const Span span = {0, rows, at, masked, draw() % 2 ? mask : 0};
    const int64_t wanted[2] = {rows - 1, 0}, taps[1] = {0};
    const int64_t count = from(-1, rows > 1 ? 2 : 1);
    float *x = numbers(rows * shape.hidden, 1), *cos = numbers(rows * width, 1), *sin = numbers(rows * width, 1);
    float *plain = 0;
    for (int number = variants - 1; number >= 0; number--) {
        Buffer buffers[2];
        for (int i = 0; i < 2; i++)
            buffers[i] = (Buffer){memory(groups * width * capacity * 2), memory(groups * width * capacity * 2), capacity};
        float *state = memory(rows * shape.hidden * 4), *tapped = memory(rows * shape.hidden * 4);
        memcpy(state, x, (size_t)(rows * shape.hidden) * 4);
        Lane lane = {&shape, layers, 2, state, rows, cos, sin, &span, 1, buffers, wanted, count, taps, 1, tapped, 0};
        const Variant *variant = caesura_variant(number);
        lane.work = memory(variant->lane_bytes(&lane));
        variant->through(&lane);
        if (plain) compare("lane", variant, state, plain, (count < 0 ? rows : count) * shape.hidden, 0.05f);
        for (int i = 0; i < 2; i++) free(buffers[i].keys), free(buffers[i].values);
        free(lane.work), free(tapped);
        if (plain) free(state);
        plain = plain ? plain : state;
    }
    free(mask), free(x), free(cos), free(sin), free(plain); /* the layers are left to the end of the process */
}

int main(int count, char **arguments) {
    int variants = 0;
    state = count > 2 ? strtoull(arguments[2], 0, 10) : 1;
    while (caesura_variant(variants)) printf("%s\n", caesura_name(caesura_variant(variants++)));
    caesura_threads(2);
    for (int64_t rounds = count > 1 ? atoi(arguments[1]) : 1; rounds > 0; rounds--) {
        product_of_a_random_shape(variants);
        lane_of_a_random_shape(variants);
        blocks_of_a_random_shape();
    }
    return 0;
}
