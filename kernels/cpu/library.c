/* The functions that Python calls. It checks the sizes; nothing here fails or keeps state. */
#include "cpu.h"

static const Variant *const VARIANTS[] = {
#if defined(__x86_64__) && defined(__linux__)
    &caesura_amx,
#endif
#if defined(__x86_64__)
    &caesura_avx512, &caesura_avxvnni, &caesura_avx2,
#endif
#if defined(__aarch64__)
    &caesura_neon,
#endif
    &caesura_portable,
};
enum { COUNT = sizeof VARIANTS / sizeof *VARIANTS };

/* The variants that this machine runs, the fastest first; NULL after the last. */
EXPORT const Variant *caesura_variant(int number) {
    for (int i = 0; i < COUNT; i++)
        if (VARIANTS[i]->runs() && number-- == 0) return VARIANTS[i];
    return 0;
}

/* A hash of the files that this was compiled from, of setup.py. */
#ifndef SOURCES
#define SOURCES ""
#endif
EXPORT const char *caesura_sources(void) { return SOURCES; }

EXPORT const char *caesura_name(const Variant *variant) { return variant->name; }

EXPORT int64_t caesura_packed_bytes(int64_t form, int64_t rows, int64_t columns) {
    return (rows + OUTPUTS - 1) / OUTPUTS * layout_of(form, columns).size;
}

/* Four nibbles, one in each byte. */
static uint32_t spread(uint32_t nibbles) {
    nibbles = (nibbles | nibbles << 8) & 0x00ff00ff;
    return (nibbles | nibbles << 4) & 0x0f0f0f0f;
}

/* Puts a stored group of a row into its place among the codes of a tile. */
static void pack_group(int64_t form, const uint8_t *stored, uint8_t *codes, int64_t lane) {
    if (form == Q8) {
        for (int quad = 0; quad < 8; quad++) memcpy(codes + 64 * quad + 4 * lane, stored + 4 * quad, 4);
        return;
    }
    for (int quad = 0; quad < 4; quad++) {
        const uint8_t *first = stored + 2 * quad, *second = first + 8;
        const uint32_t word = spread(first[0] | (uint32_t)first[1] << 8) | spread(second[0] | (uint32_t)second[1] << 8) << 4;
        memcpy(codes + 64 * quad + 4 * lane, &word, 4);
    }
}

/* Packs a stored matrix (engine/weights/stored.py: `columns` is a multiple of 32) into `tiles`, which is all zeros. */
EXPORT void caesura_pack(int64_t form, int64_t rows, int64_t columns, const uint8_t *codes, const uint8_t *scale,
                         const uint8_t *least, const float *unit, uint8_t *tiles) {
    const Layout at = layout_of(form, columns);
    const int64_t groups = columns / GROUP, bytes = form == Q8 ? 32 : 16, wide = form == K4 ? 1 : 2;
    for (int64_t row = 0; row < rows; row++) {
        uint8_t *tile = tiles + row / OUTPUTS * at.size;
        const int64_t lane = row % OUTPUTS;
        for (int64_t group = 0; group < groups; group++) {
            const int64_t from = row * groups + group, to = (group * OUTPUTS + lane) * wide;
            pack_group(form, codes + from * bytes, tile + group * bytes * OUTPUTS, lane);
            memcpy(tile + at.scale + to, scale + from * wide, (size_t)wide);
            if (form != Q8) memcpy(tile + at.least + to, least + from * wide, (size_t)wide);
        }
        if (form == K4)
            for (int side = 0; side < 2; side++)
                memcpy(tile + at.unit + 4 * (side * OUTPUTS + lane), unit + 2 * row + side, 4);
    }
}

/* Bytes of work memory for `caesura_product`. */
EXPORT int64_t caesura_work_bytes(int64_t rows, int64_t columns) {
    return rows * (4 + groups_of(columns) * (GROUP + 4));
}

/* x [rows, columns] times `count` matrices, one below the other -> out [rows, their rows]. Their columns are those of x,
   up to whole groups. */
EXPORT void caesura_product(const Variant *variant, const Matrix *const *matrices, int64_t count, const float *x,
                            int64_t rows, int64_t columns, float *out, uint8_t *work) {
    const int64_t groups = groups_of(columns);
    int64_t stride = 0;
    for (int64_t i = 0; i < count; i++) stride += matrices[i]->rows;
    Quantized quantized;
    quantized.scale = (float *)work;
    quantized.sum = quantized.scale + rows;
    quantized.q = (int8_t *)(quantized.sum + rows * groups);
    variant->quantize(x, rows, columns, columns, &quantized);
    for (int64_t i = 0; i < count; out += matrices[i++]->rows)
        variant->product(matrices[i], &quantized, out, stride, 0);
}

EXPORT void caesura_normalize(const Variant *variant, const float *x, int64_t rows, int64_t columns, const Norm *norm,
                              float eps, float *out) {
    variant->normalize(x, rows, columns, *norm, eps, out);
}

EXPORT int64_t caesura_lane_bytes(const Variant *variant, const Lane *lane) { return variant->lane_bytes(lane); }

EXPORT void caesura_through(const Variant *variant, const Lane *lane) { variant->through(lane); }
