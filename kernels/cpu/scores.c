/* What is asked of rows of logits: scores.h. */
#include "cpu.h"

EXPORT void caesura_best(const Variant *variant, const Logits *of, int64_t count, float *values, int32_t *ids) {
    variant->best(of, count, values, ids);
}

EXPORT void caesura_weigh(const Variant *variant, const Logits *of, const float *top, double *sums) {
    variant->weigh(of, top, sums);
}
