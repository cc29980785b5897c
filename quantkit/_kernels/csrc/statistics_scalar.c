/* Ranges and histograms, portable. */
#include <math.h>

#include "qk_half.h"
#include "qk_kernels.h"

void qk_widen_f16_f32_scalar(const void *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = qk_f16_f32(((const uint16_t *)x)[i]);
}

void qk_widen_bf16_f32_scalar(const void *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = qk_bf16_f32(((const uint16_t *)x)[i]);
}

#define RANGE(real)                                                                               \
    real lo = (real)INFINITY, hi = (real)-INFINITY;                                               \
    int64_t finite = 0;                                                                           \
    for (int64_t i = 0; i < n; i++) {                                                             \
        const real v = ((const real *)x)[i];                                                      \
        const int ok = v - v == 0; /* inf and NaN give NaN */                                     \
        finite += ok;                                                                             \
        lo = ok && v < lo ? v : lo;                                                               \
        hi = ok && v > hi ? v : hi;                                                               \
    }                                                                                             \
    r->lo = lo < r->lo ? lo : r->lo;                                                              \
    r->hi = hi > r->hi ? hi : r->hi;                                                              \
    r->nonfinite += n - finite;

void qk_range_f32_scalar(const void *x, int64_t n, qk_range *r) { RANGE(float) }
void qk_range_f64_scalar(const void *x, int64_t n, qk_range *r) { RANGE(double) }

int64_t qk_range_columns_f32_scalar(const float *x, int64_t n, float *lo, float *hi) {
    int64_t finite = 0;
    for (int64_t i = 0; i < n; i++) {
        const int ok = x[i] - x[i] == 0;
        finite += ok;
        lo[i] = ok && x[i] < lo[i] ? x[i] : lo[i];
        hi[i] = ok && x[i] > hi[i] ? x[i] : hi[i];
    }
    return n - finite;
}

void qk_histogram_f32_scalar(const float *x, int64_t n, float lo, float per_unit, int32_t bins, uint32_t *tables) {
    const float last = (float)(bins - 1);
    for (int64_t i = 0; i < n; i++) {
        if (x[i] - x[i] != 0) continue;
        float t = (x[i] - lo) * per_unit;
        t = t > 0 ? t : 0;
        t = t < last ? t : last;
        tables[(i & (QK_HISTOGRAM_TABLES - 1)) * bins + (int32_t)t]++;
    }
}
