/* The greatest numbers of rows. */
#include "cpu.h"

enum { LOOK = 64 }; /* numbers compared with the least of the best at once */

/* NaN is above any number, and equal to itself. */
static inline int above(float x, float y) { return !(x <= y) & (y == y); }

/* The `count` greatest numbers of each row of x [rows, columns], descending, the first of equal ones first, and their
   places, both [rows, count]. `count` is at most `columns`. */
EXPORT void caesura_best(const float *x, int64_t rows, int64_t columns, int64_t count, float *values, int64_t *places) {
    for (int64_t row = 0; row < rows; row++, x += columns, values += count, places += count) {
        int64_t held = 0;
        for (int64_t from = 0; from < columns; from += LOOK) {
            const int64_t end = from + LOOK < columns ? from + LOOK : columns;
            int any = held < count;
            if (!any)
                for (int64_t i = from; i < end; i++) any |= above(x[i], values[count - 1]);
            for (int64_t i = from; any && i < end; i++) {
                if (held == count && !above(x[i], values[count - 1])) continue;
                int64_t at = held < count ? held++ : count - 1;
                for (; at && above(x[i], values[at - 1]); at--)
                    values[at] = values[at - 1], places[at] = places[at - 1];
                values[at] = x[i], places[at] = i;
            }
        }
    }
}
