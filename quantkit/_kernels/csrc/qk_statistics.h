/* The drivers of range and histogram. */
#ifndef QK_STATISTICS_H
#define QK_STATISTICS_H

#include "qk_kernels.h"
#include "qk_layout.h"
#include "qk_types.h"

typedef struct {
    qk_layout layout; /* one operand */
    const char *x;
    qk_dtype dtype; /* a float type; float64 is rounded to float32 for histograms */
    /* of a range */
    qk_range *ranges;
    /* of a histogram: see qk_histogram_fn */
    float lo, per_unit;
    int32_t bins;
    int64_t *counts;
} qk_statistics_call;

/* Range of the finite values: into ranges[0], or ranges[channel] where layout.axis >= 0; nonfinite counts go into
 * ranges[0] alone. The caller has initialised all. Returns 0, or -1 without memory. */
int qk_range_run(const qk_statistics_call *call);

/* Add to counts[bins]. Returns 0, or -1 without memory. */
int qk_histogram_run(const qk_statistics_call *call);

#endif
