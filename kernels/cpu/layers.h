/* A decoder layer, and a lane of rows through all layers; engine/models/llama/layer.py is the same in PyTorch. Part of
   generic.h. */

/* Of 16 numbers, in their order. */
INLINE float sum_of(const Floats *x) {
    float total = 0;
    for (int i = 0; i < OUTPUTS; i++) total += x[i / LANES][i % LANES];
    return total;
}

INLINE Floats larger(Floats a, Floats b) {
    const Ints first = a > b;
    return (Floats)(((Ints)a & first) | ((Ints)b & ~first));
}

/* e to x from -87 to 88, to a unit or two of float32's last place: a power of two and a polynomial of the rest. */
INLINE Floats raised(Floats x) {
    const Floats shifted = x * 1.44269504f + 12582912.0f, whole = shifted - 12582912.0f;
    const Floats rest = fused(whole, all(2.12194440e-4f), fused(whole, all(-0.693359375f), x));
    Floats value = fused(rest, all(1.9875691e-4f), all(1.3981999e-3f));
    value = fused(value, rest, all(8.3334519e-3f));
    value = fused(value, rest, all(4.1665795e-2f));
    value = fused(value, rest, all(1.6666666e-1f));
    value = fused(value, rest, all(0.5f));
    value = fused(value * rest, rest, rest) + 1;
    const Ints power = (Ints)shifted << 23;
    return (Floats)((Ints)value + power);
}

/* e to x; 0 below e to -87. */
INLINE Floats exponential(Floats x) {
    const Floats zero = {0}, least = zero - 87, clamped = -larger(-larger(x, least), zero - 88);
    return (Floats)((Ints)raised(clamped) & (x >= least));
}

/* ---- norms and the MLP; all widths are multiples of 16 */

INLINE float mean_of(const float *x, int64_t count) {
    Floats sum[SIDES] = {{0}};
    for (int64_t i = 0; i < count; i += OUTPUTS)
        for (int side = 0; side < SIDES; side++) sum[side] += floats_at(x + i + side * LANES);
    return sum_of(sum) / (float)count;
}

typedef struct {
    const float *x;
    int64_t columns;
    Norm norm;
    float eps, *out;
} Norming;

static void normalize_rows(const void *with, int64_t from, int64_t end, int thread) {
    const Norming *of = with;
    const Norm norm = of->norm;
    const int64_t columns = of->columns;
    (void)thread;
    for (int64_t row = from; row < end; row++) {
        const float *x = of->x + row * columns;
        float *out = of->out + row * columns;
        const float mean = norm.bias ? mean_of(x, columns) : 0;
        Floats squares[SIDES] = {{0}};
        for (int64_t i = 0; i < columns; i += OUTPUTS)
            for (int side = 0; side < SIDES; side++) {
                const Floats centred = floats_at(x + i + side * LANES) - mean;
                squares[side] = fused(centred, centred, squares[side]);
            }
        const float factor = 1 / __builtin_sqrtf(sum_of(squares) / (float)columns + of->eps);
        for (int64_t i = 0; i < columns; i += LANES) {
            const Floats value = (floats_at(x + i) - mean) * factor * floats_at(norm.weight + i);
            *(FloatsAt *)(out + i) = norm.bias ? value + floats_at(norm.bias + i) : value;
        }
    }
}

/* `out` may be `x`. */
static void normalize(const float *x, int64_t rows, int64_t columns, Norm norm, float eps, float *out) {
    const Norming of = {x, columns, norm, eps, out};
    caesura_share(normalize_rows, &of, rows, columns / 8);
}

typedef struct {
    float *x;
    int64_t inner;
    int gated;
} Gating;

/* SiLU(gate) * up of [rows, 2 * inner] -> the first half of each row. */
INLINE void gate(float *x, int64_t inner) {
    for (int64_t i = 0; i < inner; i += LANES) {
        const Floats gate = floats_at(x + i), up = floats_at(x + inner + i);
        *(FloatsAt *)(x + i) = gate / (1 + exponential(-gate)) * up;
    }
}

/* GELU by its approximation with tanh, which is 1 - 2 / (e to 2y + 1). */
INLINE void gelu(float *x, int64_t inner) {
    for (int64_t i = 0; i < inner; i += LANES) {
        const Floats value = floats_at(x + i), y = 0.7978845608f * (value + 0.044715f * value * value * value);
        *(FloatsAt *)(x + i) = value * (1 - 1 / (exponential(2 * y) + 1));
    }
}

static void gate_rows(const void *with, int64_t from, int64_t end, int thread) {
    const Gating *of = with;
    (void)thread;
    for (int64_t row = from; row < end; row++)
        if (of->gated)
            gate(of->x + row * 2 * of->inner, of->inner);
        else
            gelu(of->x + row * of->inner, of->inner);
}

/* ---- products */

typedef struct {
    float *normed, *qkv, *seen, *inner, *low;
    float *scores[THREADS], *queries[THREADS];
    Quantized x, narrow; /* narrow: a low-rank part between its matrices */
    int64_t size;
} Work;

/* The next `count` bytes of the work memory, from a multiple of 64 on. Without memory it only counts. */
static void *taken(Work *work, uint8_t *memory, int64_t count) {
    const int64_t at = work->size;
    work->size += (count + 63) / 64 * 64;
    return memory ? memory + at : 0;
}

static Quantized room(Work *work, uint8_t *memory, int64_t rows, int64_t columns) {
    const int64_t groups = groups_of(columns);
    Quantized out = {0};
    out.q = taken(work, memory, rows * groups * GROUP);
    out.scale = taken(work, memory, rows * 4);
    out.sum = taken(work, memory, rows * groups * 4);
    return out;
}

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t padded(int64_t columns) { return (columns + OUTPUTS - 1) / OUTPUTS * OUTPUTS; }

static Work work_of(const Lane *lane) {
    const Shape *shape = lane->shape;
    const int64_t rows = lane->rows, heads = shape->heads * shape->width, inner = (1 + shape->gated) * shape->inner;
    int64_t columns = 0;
    for (int64_t i = 0; i < lane->span_count; i++)
        columns = most(columns, lane->spans[i].at + lane->spans[i].end - lane->spans[i].first);
    Work work = {0};
    work.normed = taken(&work, lane->work, rows * shape->hidden * 4);
    work.qkv = taken(&work, lane->work, rows * (shape->heads + 2 * shape->groups) * shape->width * 4);
    work.seen = taken(&work, lane->work, rows * heads * 4);
    work.inner = taken(&work, lane->work, rows * inner * 4);
    work.low = taken(&work, lane->work, rows * shape->rank * 4);
    for (int thread = 0; thread < THREADS; thread++) {
        work.scores[thread] = taken(&work, lane->work, BLOCK * padded(columns) * 4);
        work.queries[thread] = taken(&work, lane->work, BLOCK * shape->width * 4);
    }
    work.x = room(&work, lane->work, rows, most(most(shape->hidden, heads), shape->inner));
    work.narrow = room(&work, lane->work, rows, shape->rank);
    return work;
}

static int64_t lane_bytes(const Lane *lane) { return work_of(lane).size; }

/* x [rows, columns of W], rows `stride` apart -> out [rows, rows of W], overwritten or added to. */
static void times(const Product *of, const float *x, int64_t rows, int64_t stride, Work *work, float *out, int add) {
    int64_t wide = 0, at = 0;
    for (int64_t i = 0; i < of->count; i++) wide += of->matrices[i]->rows;
    quantize(x, rows, of->matrices[0]->columns, stride, &work->x);
    for (int64_t i = 0; i < of->count; at += of->matrices[i++]->rows)
        product(of->matrices[i], &work->x, out + at, wide, add);
    if (of->down) {
        product(of->down, &work->x, work->low, of->down->rows, 0);
        quantize(work->low, rows, of->down->rows, of->down->rows, &work->narrow);
        product(of->up, &work->narrow, out, wide, 1);
    }
    for (int64_t row = 0; of->bias && row < rows; row++)
        for (int64_t i = 0; i < wide; i++) out[row * wide + i] += of->bias[i];
}

/* ---- attention */

/* Rotary positions of a head, pairs split in halves. */
INLINE void rotate(float *x, const float *cos, const float *sin, int64_t width) {
    const int64_t half = width / 2;
    for (int64_t i = 0; i < half; i++) {
        const float left = x[i], right = x[i + half];
        x[i] = left * cos[i] - right * sin[i];
        x[i + half] = right * cos[i + half] + left * sin[i + half];
    }
}

/* To the nearest bfloat16, ties to even. */
INLINE uint16_t brain(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

typedef struct {
    const Shape *shape;
    const Span *span;
    const Buffer *to;
    const float *qkv;
} Keeping;

/* Writes keys and values into the KV. */
static void keep_rows(const void *with, int64_t from, int64_t end, int thread) {
    const Keeping *of = with;
    const Shape *shape = of->shape;
    const Buffer *to = of->to;
    const int64_t width = shape->width, stride = (shape->heads + 2 * shape->groups) * width;
    (void)thread;
    for (int64_t row = from; row < end; row++)
        for (int64_t head = 0; head < shape->groups; head++) {
            const float *key = of->qkv + (of->span->first + row) * stride + (shape->heads + head) * width;
            const float *value = key + shape->groups * width;
            const int64_t at = of->span->at + row;
            uint16_t *keys = to->keys + head * width * to->capacity + at;
            uint16_t *values = to->values + (head * to->capacity + at) * width;
            for (int64_t i = 0; i < width; i++) keys[i * to->capacity] = brain(key[i]);
            for (int64_t i = 0; i < width; i++) values[i] = brain(value[i]);
        }
}

/* out [count, LANES * wide] = a [count, depth] times b in bfloat16; rows are `a_stride`, `b_stride`, `stride` apart. */
INLINE void block(const float *a, int64_t a_stride, const uint16_t *b, int64_t b_stride, int64_t depth, const int count,
                  const int wide, float *out, int64_t stride) {
    Floats sum[BLOCK * WIDE];
    for (int i = 0; i < count * wide; i++) sum[i] = (Floats){0};
    for (int64_t k = 0; k < depth; k++)
        for (int side = 0; side < wide; side++) {
            const Floats column = brains(b + k * b_stride + side * LANES);
            for (int i = 0; i < count; i++)
                sum[i * wide + side] = fused(column, all(a[i * a_stride + k]), sum[i * wide + side]);
        }
    for (int i = 0; i < count; i++)
        for (int side = 0; side < wide; side++) *(FloatsAt *)(out + i * stride + side * LANES) = sum[i * wide + side];
}

/* out [count, columns] = a [count, depth] times b [depth, columns]; columns are a multiple of 16. Computes scores
   (queries times keys) and attention (shares times values). */
INLINE void blocks(const float *a, int64_t a_stride, const uint16_t *b, int64_t b_stride, int64_t depth, const int count,
                   int64_t columns, float *out, int64_t stride) {
    int64_t c = 0;
    for (; c + WIDE * LANES <= columns; c += WIDE * LANES)
        block(a, a_stride, b + c, b_stride, depth, count, WIDE, out + c, stride);
    for (; c < columns; c += LANES) block(a, a_stride, b + c, b_stride, depth, count, 1, out + c, stride);
}

/* Scores [end, rounded up to 16] -> their exponentials, 0 for masked columns; returns the sum. */
static float shares(float *scores, int64_t end, const uint8_t *mask, int64_t masked) {
    const int64_t size = padded(end);
    for (int64_t i = 0; mask && i < masked; i++)
        if (!mask[i]) scores[end - masked + i] = -__builtin_inff();
    for (int64_t i = end; i < size; i++) scores[i] = -__builtin_inff();
    Floats top = floats_at(scores), sum[SIDES] = {{0}};
    for (int64_t i = LANES; i < size; i += LANES) top = larger(floats_at(scores + i), top);
    float best = top[0];
    for (int i = 1; i < LANES; i++) best = top[i] > best ? top[i] : best;
    for (int64_t i = 0; i < size; i += OUTPUTS)
        for (int side = 0; side < SIDES; side++) {
            float *at = scores + i + side * LANES;
            const Floats share = exponential(floats_at(at) - best);
            *(FloatsAt *)at = share;
            sum[side] += share;
        }
    return sum_of(sum);
}

/* Up to BLOCK queries of one key head, from number `from` on: query n is row n / share of the span, head n % share
   of those that share the key head. */
INLINE void attend_block(const Lane *lane, const Span *span, const Buffer *held, int64_t group, int64_t from,
                         int64_t some, const int count, const Work *work, int thread) {
    const Shape *shape = lane->shape;
    const int64_t width = shape->width, share = shape->heads / shape->groups, end = span->at + span->end - span->first;
    const int64_t stride = (shape->heads + 2 * shape->groups) * width, size = padded(end);
    const float factor = 1 / __builtin_sqrtf((float)width);
    float *scores = work->scores[thread], *queries = work->queries[thread];
    for (int64_t n = 0; n < some; n++) {
        const int64_t row = span->first + (from + n) / share, head = group * share + (from + n) % share;
        for (int64_t i = 0; i < width; i++)
            queries[n * width + i] = work->qkv[row * stride + head * width + i] * factor;
    }
    for (int64_t n = some; n < count; n++) memset(queries + n * width, 0, (size_t)width * 4);
    const uint16_t *keys = held->keys + group * width * held->capacity;
    blocks(queries, width, keys, held->capacity, width, count, size, scores, size);
    float sums[BLOCK];
    for (int64_t n = 0; n < some; n++) {
        const uint8_t *mask = span->mask ? span->mask + (from + n) / share * span->masked : 0;
        sums[n] = shares(scores + n * size, end, mask, span->masked);
    }
    const uint16_t *values = held->values + group * held->capacity * width;
    blocks(scores, size, values, width, end, count, width, queries, width);
    for (int64_t n = 0; n < some; n++) {
        const int64_t row = span->first + (from + n) / share, head = group * share + (from + n) % share;
        float *out = work->seen + (row * shape->heads + head) * width;
        for (int64_t i = 0; i < width; i++) out[i] = queries[n * width + i] / sums[n];
    }
}

typedef struct {
    const Lane *lane;
    const Span *span;
    const Buffer *held;
    const Work *work;
    int64_t queries, blocks; /* of a key head */
} Attending;

static void attend_blocks(const void *with, int64_t from, int64_t end, int thread) {
    const Attending *of = with;
    for (int64_t number = from; number < end; number++) {
        const int64_t group = number / of->blocks, first = number % of->blocks * BLOCK, left = of->queries - first;
        if (left > BLOCK / 2)
            attend_block(of->lane, of->span, of->held, group, first, left < BLOCK ? left : BLOCK, BLOCK, of->work, thread);
        else
            attend_block(of->lane, of->span, of->held, group, first, left, BLOCK / 2, of->work, thread);
    }
}

static void attend(const Lane *lane, const Span *span, const Buffer *held, const Work *work) {
    const int64_t rows = span->end - span->first, groups = lane->shape->groups;
    const int64_t queries = rows * (lane->shape->heads / groups), blocks = (queries + BLOCK - 1) / BLOCK;
    const Attending of = {lane, span, held, work, queries, blocks};
    caesura_share(attend_blocks, &of, groups * blocks, (span->at + rows) * lane->shape->width * BLOCK / 32);
}

/* ---- a layer, and all of them */

typedef struct {
    const Lane *lane;
    const Layer *layer;
    float *qkv;
} Turning;

/* Applies norms and positions to queries and keys. */
static void turn_rows(const void *with, int64_t from, int64_t end, int thread) {
    const Turning *of = with;
    const Shape *shape = of->lane->shape;
    const int64_t width = shape->width, stride = (shape->heads + 2 * shape->groups) * width;
    for (int64_t row = from; row < end; row++)
        for (int64_t head = 0; head < shape->heads + shape->groups; head++) {
            float *x = of->qkv + row * stride + head * width;
            const Norm norm = head < shape->heads ? of->layer->query : of->layer->key;
            const Norming norming = {x, width, norm, shape->eps, x};
            if (norm.weight) normalize_rows(&norming, 0, 1, thread);
            rotate(x, of->lane->cos + row * width, of->lane->sin + row * width, width);
        }
}

/* Moves the wanted rows, in any order, to the front of x [rows, columns]; `spare` has the same size. */
static void choose(const Lane *lane, float *x, int64_t columns, float *spare) {
    for (int64_t i = 0; i < lane->wanted_count; i++)
        memcpy(spare + i * columns, x + lane->wanted[i] * columns, (size_t)columns * 4);
    memcpy(x, spare, (size_t)(lane->wanted_count * columns) * 4);
}

static void one_layer(const Lane *lane, int64_t number, Work *work) {
    const Shape *shape = lane->shape;
    const Layer *layer = lane->layers + number;
    const int64_t heads = shape->heads * shape->width, inner = shape->inner, wide = (1 + shape->gated) * inner;
    const int last = number == lane->count - 1 && lane->wanted_count >= 0;
    int64_t rows = lane->rows;
    normalize(lane->x, rows, shape->hidden, layer->attention, shape->eps, work->normed);
    times(&layer->qkv, work->normed, rows, shape->hidden, work, work->qkv, 0);
    const Turning turning = {lane, layer, work->qkv};
    caesura_share(turn_rows, &turning, rows, heads / 4);
    for (int64_t i = 0; i < lane->span_count; i++) { /* one at a time: canvases of a KV take the same place */
        const Span *span = lane->spans + i;
        const Buffer *held = lane->buffers + number * lane->span_count + i;
        const Keeping keeping = {shape, span, held, work->qkv};
        caesura_share(keep_rows, &keeping, span->end - span->first, 2 * shape->groups * shape->width);
        if (!last || lane->wanted_count > 0) attend(lane, span, held, work);
    }
    if (last) {
        rows = lane->wanted_count;
        choose(lane, lane->x, shape->hidden, work->normed);
        choose(lane, work->seen, heads, work->qkv);
    }
    times(&layer->out, work->seen, rows, heads, work, lane->x, 1);
    normalize(lane->x, rows, shape->hidden, layer->mlp, shape->eps, work->normed);
    times(&layer->gate_up, work->normed, rows, shape->hidden, work, work->inner, 0);
    const Gating gating = {work->inner, inner, shape->gated};
    caesura_share(gate_rows, &gating, rows, inner / 4);
    times(&layer->down, work->inner, rows, wide, work, lane->x, 1);
}

static void through(const Lane *lane) {
    Work work = work_of(lane);
    const int64_t size = lane->rows * lane->shape->hidden;
    for (int64_t number = 0; number < lane->count; number++) {
        one_layer(lane, number, &work);
        for (int64_t i = 0; i < lane->tap_count; i++)
            if (lane->taps[i] == number) memcpy(lane->tapped + i * size, lane->x, (size_t)size * 4);
    }
}
