/* CPUs with AMX: Intel from Sapphire Rapids on. Blocks of 16 rows use its tiles, other rows AVX512-VNNI, with the same
   result to the last bit. On Linux a process has to ask for the tiles. */
#include "cpu.h"
#include "target.h"

#if defined(__x86_64__) && defined(__linux__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
TARGETED("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,amx-tile,amx-int8")

#define VARIANT amx
#define RUNS runs
#define LANES 16
#define BLOCK 8
#define WIDE 2

#include "avx512.h"

static int runs(void) {
    const long ask = 0x1023, tiles = 18; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return caesura_avx512.runs() && __builtin_cpu_supports("amx-int8") && !syscall(SYS_arch_prctl, ask, tiles);
}

#define tile_by_many tile_by_many
enum { MANY = 16, DEEPEST = 1024 }; /* rows of a block; groups of a matrix that is multiplied so */

typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16]; /* of a tile register's row */
    uint8_t rows[16];
} Tiles;

/* The codes of a group as int8, 8 x 64 bytes. */
INLINE void unpack(const uint8_t *group, const int form, int8_t *out) {
    const __m512i low = _mm512_set1_epi8(15);
    for (int i = 0; i < (form == Q8 ? 8 : 4); i++) {
        const __m512i codes = _mm512_loadu_si512(group + 64 * i);
        if (form == Q8) {
            _mm512_store_si512(out + 64 * i, codes);
            continue;
        }
        _mm512_store_si512(out + 64 * i, _mm512_and_si512(codes, low));
        _mm512_store_si512(out + 64 * (i + 4), _mm512_and_si512(_mm512_srli_epi16(codes, 4), low));
    }
}

INLINE Floats scale_of(const uint8_t *tile, Layout at, int64_t group, int first, const int form);
INLINE Floats least_of(const uint8_t *tile, Layout at, int64_t group, int first, const int form);
INLINE void put(Floats value, float *out, int64_t wanted, int add);

/* A group of 16 rows times 16 outputs. */
INLINE void multiply_group(const int8_t *q, int64_t width, const int8_t *codes, int32_t *out) {
    _tile_zero(0);
    _tile_loadd(1, q, width);
    _tile_loadd(2, codes, 64);
    _tile_dpbssd(0, 1, 2);
    _tile_stored(0, out, 64);
}

/* Multiplies whole blocks of 16 rows, from the first on; returns how many rows that were. */
INLINE int64_t tile_by_many(const uint8_t *tile, Layout at, const int form, const Quantized *x, float *out,
                            int64_t stride, int64_t wanted, int add) {
    const int64_t groups = x->width / GROUP, done = x->rows / MANY * MANY;
    _Alignas(64) int8_t codes[DEEPEST * 512];
    _Alignas(64) int32_t dot[2][MANY * OUTPUTS];
    if (!done || groups > DEEPEST) return 0;
    const Tiles shape = {.palette = 1, .bytes = {64, GROUP, 64}, .rows = {MANY, MANY, 8}};
    _tile_loadconfig(&shape);
    for (int64_t group = 0; group < groups; group++)
        unpack(tile + group * (form == Q8 ? 512 : 256), form, codes + group * 512);
    for (int64_t first = 0; first < done; first += MANY) {
        const int8_t *q = x->q + first * x->width;
        Floats total[MANY];
        for (int row = 0; row < MANY; row++) total[row] = all(0);
        multiply_group(q, x->width, codes, dot[0]);
        for (int64_t group = 0; group < groups; group++) { /* multiplies the next one while this one is added */
            const int32_t *found = dot[group % 2];
            if (group + 1 < groups)
                multiply_group(q + (group + 1) * GROUP, x->width, codes + (group + 1) * 512, dot[(group + 1) % 2]);
            const Floats scale = scale_of(tile, at, group, 0, form);
            for (int row = 0; row < MANY; row++)
                total[row] = fused(floats(*(const Ints *)(found + row * OUTPUTS)), scale, total[row]);
            if (form == Q8) continue;
            const Floats least = least_of(tile, at, group, 0, form);
            for (int row = 0; row < MANY; row++)
                total[row] = fused(least, all(x->sum[(first + row) * groups + group]), total[row]);
        }
        for (int row = 0; row < MANY; row++)
            put(total[row] * x->scale[first + row], out + (first + row) * stride, wanted, add);
    }
    _tile_release();
    return done;
}

#include "generic.h"
TARGETED_END
#endif
