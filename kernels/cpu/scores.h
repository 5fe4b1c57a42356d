/* What is asked of rows of logits; scores.py is the same in numpy. Part of generic.h. A row's sums have one order, and
   none of its numbers depends on another row. */

/* 64 tokens of a set from token `from` on, a bit each, without those from `end` on. */
INLINE uint64_t word_of(const uint8_t *set, int64_t from, int64_t end) {
    const int64_t left = end - from;
    uint64_t word = 0;
    if (!set) word = ~word;
    else if (left >= 64) memcpy(&word, set + from / 8, 8);
    else memcpy(&word, set + from / 8, (size_t)(left + 7) / 8);
    return left >= 64 ? word : word & ~(~(uint64_t)0 << left);
}

/* NaN is above any number, and equal to itself. */
INLINE int above(float x, float y) { return !(x <= y) & (y == y); }

typedef struct {
    const Logits *of;
    int64_t count;
    float *values;
    int32_t *ids;
} Choosing;

static void best_of_rows(const void *with, int64_t first, int64_t last, int thread) {
    const Choosing *job = with;
    const int64_t columns = job->of->columns, count = job->count;
    (void)thread;
    for (int64_t row = first; row < last; row++) {
        const float *x = job->of->x + row * columns;
        const uint8_t *set = job->of->sets ? job->of->sets[row] : 0;
        float *values = job->values + row * count;
        int32_t *ids = job->ids + row * count;
        int64_t held = 0;
        for (int64_t from = 0; from < columns; from += 64) {
            uint64_t word = word_of(set, from, columns);
            const int64_t end = from + 64 < columns ? from + 64 : columns;
            int any = held < count;
            if (!any)
                for (int64_t i = from; i < end; i++) any |= above(x[i], values[count - 1]);
            for (; any && word; word &= word - 1) {
                const int64_t i = from + __builtin_ctzll(word);
                if (held == count && !above(x[i], values[count - 1])) continue;
                int64_t at = held < count ? held++ : count - 1;
                for (; at && above(x[i], values[at - 1]); at--) values[at] = values[at - 1], ids[at] = ids[at - 1];
                values[at] = x[i], ids[at] = (int32_t)i;
            }
        }
        for (; held < count; held++) values[held] = -__builtin_inff(), ids[held] = -1;
    }
}

static void best(const Logits *of, int64_t count, float *values, int32_t *ids) {
    const Choosing job = {of, count, values, ids};
    caesura_share(best_of_rows, &job, of->rows, of->columns / 4);
}

typedef struct {
    const Logits *of;
    const float *top;
    double *sums;
} Weighing;

/* The bits of 16 tokens as vectors of all ones or zeros. */
static const int32_t BIT[OUTPUTS] = {1,      1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
                                     1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};

INLINE Ints chosen(int32_t bits, int side) {
    Ints bit;
    memcpy(&bit, BIT + side * LANES, sizeof bit);
    return ((bit & bits) != 0);
}

typedef struct {
    Floats share[SIDES], lean[SIDES];
} Sums;

/* Adds 16 numbers, or the chosen ones of them. */
INLINE void add_group(Sums *sums, const float *x, float top, int32_t bits, const int whole) {
    for (int side = 0; side < SIDES; side++) {
        const Floats less = larger(floats_at(x + side * LANES) - top, all(-87));
        Floats share = (Floats)((Ints)raised(less) & (less > -87));
        if (!whole) share = (Floats)((Ints)share & chosen(bits, side));
        sums->share[side] += share;
        sums->lean[side] = fused(less, share, sums->lean[side]);
    }
}

/* Adds up to 64 numbers from column `from` on. */
INLINE void add_word(Sums *sums, const float *x, int64_t from, int64_t columns, float top, uint64_t word) {
    if (!~word) {
        for (int i = 0; i < 64; i += OUTPUTS) add_group(sums, x + from + i, top, 0, 1);
        return;
    }
    for (int64_t i = from; word; i += OUTPUTS, word >>= OUTPUTS) {
        float part[OUTPUTS] = {0}; /* numbers after the row are not read */
        const float *at = x + i;
        if (columns - i < OUTPUTS) at = memcpy(part, at, (size_t)(columns - i) * sizeof *at);
        add_group(sums, at, top, (int32_t)(word & 0xffff), 0);
    }
}

static void weigh_rows(const void *with, int64_t first, int64_t last, int thread) {
    enum { RUN = 1024 }; /* columns added up in float32 */
    const Weighing *job = with;
    const int64_t columns = job->of->columns;
    (void)thread;
    for (int64_t row = first; row < last; row++) {
        const float *x = job->of->x + row * columns, top = job->top[row];
        const uint8_t *set = job->of->sets ? job->of->sets[row] : 0;
        const int finite = top - top == 0;
        double share = top - top, lean = share; /* 0, or NaN */
        for (int64_t run = 0; finite && run < columns; run += RUN) {
            Sums sums = {{{0}}, {{0}}};
            for (int64_t from = run; from < columns && from < run + RUN; from += 64)
                add_word(&sums, x, from, columns, top, word_of(set, from, columns));
            share += sum_of(sums.share), lean += sum_of(sums.lean);
        }
        job->sums[2 * row] = share, job->sums[2 * row + 1] = lean;
    }
}

static void weigh(const Logits *of, const float *top, double *sums) {
    const Weighing job = {of, top, sums};
    caesura_share(weigh_rows, &job, of->rows, of->columns / 2);
}
