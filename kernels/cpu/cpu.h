/* Shared by the files of this folder. Plain C with a C ABI: Python calls it through ctypes, without torch.

   One source, `generic.h`, is compiled once for each kind of CPU ("variant"): `avx512.c`, `avx2.c` and so on define
   how to multiply a group of 4-bit or 8-bit weights, then include it. `library.c` chooses among them at run time. */
#ifndef CAESURA_CPU_H
#define CAESURA_CPU_H

#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

#define INLINE static inline __attribute__((always_inline))

enum { GROUP = 32, OUTPUTS = 16 }; /* columns that share a scale; matrix rows in a tile */
enum { Q8, Q4, K4 };               /* the stored forms of engine/weights/stored.py */

/* A matrix W [rows, columns] in tiles of 16 rows, padded with zeros. A tile has the codes of each group of 32 columns;
   then all scales, then all minima, 16 a group; then the row units.

   codes   Q8: 8 quads of columns x 16 rows x 4 int8. Else 4 x 16 x 4 bytes: quad i in the low nibbles, i + 4 in the high.
   scale   Q8, Q4: float16. K4: uint8.
   least   Q4: float16. K4: uint8.
   unit    K4: float32 x 16 for the scales, then x 16 for the minima, which are subtracted. */
typedef struct {
    int64_t rows, columns, form;
    const uint8_t *tiles; /* aligned to 64 bytes */
} Matrix;

/* The bits of the largest absolute value. As integers, since NaN makes float comparison not associative for the
   compiler; here NaN counts as large. */
INLINE int32_t largest_bits(const float *x, int64_t count) {
    int32_t most = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t bits;
        memcpy(&bits, x + i, 4);
        bits &= 0x7fffffff;
        most = bits > most ? bits : most;
    }
    return most;
}

static inline int64_t groups_of(int64_t columns) { return (columns + GROUP - 1) / GROUP; }

typedef struct {
    int64_t scale, least, unit, size; /* offsets in a tile, and its bytes */
} Layout;

static inline Layout layout_of(int64_t form, int64_t columns) {
    const int64_t groups = groups_of(columns), wide = form == K4 ? 1 : 2;
    Layout at;
    at.scale = groups * (form == Q8 ? 512 : 256);
    at.least = at.scale + groups * OUTPUTS * wide;
    at.unit = form == Q8 ? at.least : at.least + groups * OUTPUTS * wide;
    at.size = (at.unit + (form == K4 ? 2 * OUTPUTS * 4 : 0) + 63) / 64 * 64;
    return at;
}

/* Rows of activations in 8 bits: value = q * scale of the row. */
typedef struct {
    int64_t rows, width; /* width: columns, padded with zeros to whole groups */
    int8_t *q;           /* [rows, width], from -127 to 127 */
    float *scale;        /* [rows] */
    float *sum;          /* [rows, groups], of the q of a group */
} Quantized;

/* The RMS norm of rows, or the layer norm if there is a bias. Without weights there is no norm. */
typedef struct {
    const float *weight, *bias;
} Norm;

/* W x, in a canvas + B (A x), + bias. W is `count` matrices, one below the other; `down` is A and `up` is B, NULL in the
   other path; `bias` may be NULL. */
typedef struct {
    const Matrix *const *matrices;
    int64_t count;
    const Matrix *down, *up;
    const float *bias;
} Product;

typedef struct {
    Norm attention;
    Product qkv;
    Norm query, key; /* of each head */
    Product out;
    Norm mlp;
    Product gate_up, down;
} Layer;

typedef struct {
    int64_t hidden, heads, groups, width, inner, rank; /* groups: key heads; width: of a head; rank: the largest, of A */
    float eps;
    int32_t gated; /* an MLP of SiLU(gate) * up, else of GELU */
} Shape;

/* Rows `first` to `end` of a lane go into a KV from row `at` on. They see all earlier rows; `mask` [rows, masked] is
   for the last `masked` rows, their own included. If it is NULL, they see all. */
typedef struct {
    int64_t first, end, at, masked;
    const uint8_t *mask;
} Span;

/* A layer's keys and values in bfloat16, [groups, width, capacity] and [groups, capacity, width]. */
typedef struct {
    uint16_t *keys, *values;
    int64_t capacity; /* a multiple of 16 */
} Buffer;

/* Rows that go through layers together. */
typedef struct {
    const Shape *shape;
    const Layer *layers;
    int64_t count; /* of layers */
    float *x;      /* [rows, hidden], changed in place; at the end the wanted rows are first */
    int64_t rows;
    const float *cos, *sin; /* [rows, width], of their positions */
    const Span *spans;
    int64_t span_count;
    const Buffer *buffers; /* [layers, spans] */
    const int64_t *wanted; /* rows that leave the last layer, at most all */
    int64_t wanted_count;  /* below 0: all */
    const int64_t *taps; /* layers after which x is copied to `tapped` [taps, rows, hidden]; not the last */
    int64_t tap_count;
    float *tapped;
    uint8_t *work; /* `lane_bytes` of them */
} Lane;

/* Rows of logits [rows, columns], and the tokens that count in each: bit i % 8 of byte i / 8 of a set, all if it is
   NULL. */
typedef struct {
    const float *x;
    int64_t rows, columns;
    const uint8_t *const *sets; /* [rows], or NULL */
} Logits;

enum { THREADS = 4 }; /* most threads of a job */

/* Computes units `from` to `end` of a job; `thread` is below THREADS and differs between threads at work. */
typedef void Task(const void *with, int64_t from, int64_t end, int thread);

/* Computes `count` units of about `cost` nanoseconds each, with this thread and free others: team.c. */
void caesura_share(Task *task, const void *with, int64_t count, int64_t cost);

typedef struct {
    const char *name;
    int (*runs)(void); /* true if this machine has the instructions */
    void (*quantize)(const float *x, int64_t rows, int64_t columns, int64_t stride, Quantized *out);
    /* out [rows of x, matrix rows], `stride` floats apart; added to, or overwritten */
    void (*product)(const Matrix *matrix, const Quantized *x, float *out, int64_t stride, int add);
    /* norm of x [rows, columns] -> out */
    void (*normalize)(const float *x, int64_t rows, int64_t columns, Norm norm, float eps, float *out);
    int64_t (*lane_bytes)(const Lane *lane);
    void (*through)(const Lane *lane);
    /* The `count` greatest numbers of each row, descending, the first of equal ones first, and their ids; -inf and -1
       after the last token of its set. */
    void (*best)(const Logits *of, int64_t count, float *values, int32_t *ids);
    /* The sums of e to x - top and of that times x - top, [rows, 2]; NaN where the row's greatest, `top`, is not finite. */
    void (*weigh)(const Logits *of, const float *top, double *sums);
} Variant;

extern const Variant caesura_amx, caesura_avx512, caesura_avxvnni, caesura_avx2, caesura_neon, caesura_portable;

#endif
