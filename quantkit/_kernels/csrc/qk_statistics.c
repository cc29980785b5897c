#include "qk_statistics.h"

#include <math.h>
#include <stdlib.h>

#include "qk_dispatch.h"
#include "qk_memory.h"

#define CHUNK 1024
#define FLUSH (1 << 30) /* elements after which the 32-bit counters are emptied */

#define KERNEL(slot, family) ((qk_##family##_fn *)qk_table[QK_SLOT_##slot])

/* What to do with a packed run of float32 or float64 values that starts at channel c. */
typedef struct visitor visitor;
struct visitor {
    void (*visit)(visitor *v, const void *x, int64_t n, int64_t c);
    int wants_f32;
};

/* Pass one run on, packed and in a type that the kernels read; in chunks where it has to be gathered or widened. */
static void visit_1d(const qk_statistics_call *call, visitor *v, const char *x, int64_t stride, int64_t n, int64_t c,
                     int columns) {
    const int64_t size = qk_itemsize(call->dtype);
    const int widen = call->dtype == QK_F16 || call->dtype == QK_BF16, narrow = call->dtype == QK_F64 && v->wants_f32;
    if (stride == size && !widen && !narrow) {
        v->visit(v, x, n, c);
        return;
    }
    _Alignas(64) char packed[CHUNK * 8];
    float values[CHUNK];
    for (int64_t i = 0; i < n; i += CHUNK) {
        const int64_t now = n - i < CHUNK ? n - i : CHUNK;
        const void *run = x + i * stride;
        if (stride != size) {
            qk_copy_strided(packed, size, x + i * stride, stride, now, size);
            run = packed;
        }
        if (widen) {
            if (call->dtype == QK_F16) KERNEL(widen_f16_f32, widen)(run, values, now);
            else KERNEL(widen_bf16_f32, widen)(run, values, now);
            run = values;
        } else if (narrow) {
            for (int64_t k = 0; k < now; k++) {
                double d;
                memcpy(&d, (const char *)run + k * 8, 8);
                values[k] = (float)d;
            }
            run = values;
        }
        v->visit(v, run, now, columns ? c + i : c);
    }
}

static void walk_down(const qk_statistics_call *call, visitor *v, int d, const char *x, int64_t c) {
    const qk_layout *l = &call->layout;
    const int last = l->ndim - 1;
    if (last < 0) {
        visit_1d(call, v, x, qk_itemsize(call->dtype), 1, c, 0);
    } else if (d == last) {
        visit_1d(call, v, x, l->strides[0][d], l->shape[d], c, l->axis == last);
    } else {
        for (int64_t i = 0; i < l->shape[d]; i++)
            walk_down(call, v, d + 1, x + i * l->strides[0][d], d == l->axis ? i : c);
    }
}

typedef struct {
    visitor v;
    qk_range *ranges;
    qk_range_fn *kernel;
} range_visitor;

static void visit_range(visitor *v, const void *x, int64_t n, int64_t c) {
    range_visitor *r = (range_visitor *)v;
    qk_range *own = &r->ranges[c];
    int64_t before = own->nonfinite;
    r->kernel(x, n, own);
    if (c) {
        r->ranges[0].nonfinite += own->nonfinite - before;
        own->nonfinite = before;
    }
}

typedef struct {
    visitor v;
    float *lo, *hi;
    int64_t nonfinite;
} columns_visitor;

static void visit_columns_f32(visitor *v, const void *x, int64_t n, int64_t c) {
    columns_visitor *r = (columns_visitor *)v;
    r->nonfinite += KERNEL(range_columns_f32, range_columns)(x, n, r->lo + c, r->hi + c);
}

static void visit_columns_f64(visitor *v, const void *x, int64_t n, int64_t c) {
    range_visitor *r = (range_visitor *)v;
    for (int64_t i = 0; i < n; i++) {
        const double value = ((const double *)x)[i];
        qk_range *own = &r->ranges[c + i];
        if (value - value != 0) {
            r->ranges[0].nonfinite++;
            continue;
        }
        own->lo = value < own->lo ? value : own->lo;
        own->hi = value > own->hi ? value : own->hi;
    }
}

/* Channels innermost, float32 or narrower: ranges of columns. Few channels are repeated until a row is long. */
static int run_columns(const qk_statistics_call *call, qk_range *ranges) {
    const qk_layout *l = &call->layout;
    const int last = l->ndim - 1;
    const int64_t channels = l->shape[last], size = qk_itemsize(call->dtype);
    int64_t width = channels;
    qk_statistics_call wide = *call;
    if (l->ndim == 2 && channels < CHUNK && l->strides[0][1] == size && l->strides[0][0] == channels * size) {
        int64_t rows = CHUNK / channels;
        if (rows > l->shape[0]) rows = l->shape[0];
        width = rows * channels;
        wide.layout.shape[0] = l->shape[0] / rows;
        wide.layout.shape[1] = width;
        wide.layout.strides[0][0] = width * size;
    }
    float *lo = malloc((size_t)width * 8);
    if (!lo) return -1;
    columns_visitor v = {{visit_columns_f32, 1}, lo, lo + width, 0};
    for (int64_t i = 0; i < width; i++) v.lo[i] = INFINITY, v.hi[i] = -INFINITY;
    walk_down(&wide, &v.v, 0, call->x, 0);
    if (width != channels) { /* rows that did not fill a repetition */
        const int64_t done = wide.layout.shape[0] * (width / channels);
        qk_statistics_call rest = *call;
        rest.layout.shape[0] -= done;
        walk_down(&rest, &v.v, 0, call->x + done * l->strides[0][0], 0);
    }
    for (int64_t i = 0; i < width; i++) {
        qk_range *r = &ranges[i % channels];
        r->lo = v.lo[i] < r->lo ? v.lo[i] : r->lo;
        r->hi = v.hi[i] > r->hi ? v.hi[i] : r->hi;
    }
    ranges[0].nonfinite += v.nonfinite;
    free(lo);
    return 0;
}

int qk_range_run(const qk_statistics_call *call) {
    qk_range *ranges = call->ranges;
    const int columns = call->layout.axis >= 0 && call->layout.axis == call->layout.ndim - 1;
    const int f64 = call->dtype == QK_F64;
    if (columns && !f64) return run_columns(call, ranges);
    range_visitor v = {{columns ? visit_columns_f64 : visit_range, 0}, ranges,
                       f64 ? KERNEL(range_f64, range) : KERNEL(range_f32, range)};
    walk_down(call, &v.v, 0, call->x, 0);
    return 0;
}

typedef struct {
    visitor v;
    float lo, per_unit;
    int32_t bins;
    uint32_t *tables;
    int64_t *counts, held;
} histogram_visitor;

static void flush(histogram_visitor *h) {
    for (int t = 0; t < QK_HISTOGRAM_TABLES; t++)
        for (int32_t b = 0; b < h->bins; b++) h->counts[b] += h->tables[(int64_t)t * h->bins + b];
    memset(h->tables, 0, sizeof(uint32_t) * QK_HISTOGRAM_TABLES * (size_t)h->bins);
    h->held = 0;
}

static void visit_histogram(visitor *v, const void *x, int64_t n, int64_t c) {
    histogram_visitor *h = (histogram_visitor *)v;
    (void)c;
    for (int64_t i = 0; i < n; i += FLUSH) {
        const int64_t now = n - i < FLUSH ? n - i : FLUSH;
        if (h->held + now > FLUSH) flush(h);
        KERNEL(histogram_f32, histogram)((const float *)x + i, now, h->lo, h->per_unit, h->bins, h->tables);
        h->held += now;
    }
}

int qk_histogram_run(const qk_statistics_call *call) {
    const int32_t bins = call->bins;
    uint32_t *tables = calloc((size_t)bins * QK_HISTOGRAM_TABLES, sizeof *tables);
    if (!tables) return -1;
    histogram_visitor h = {{visit_histogram, 1}, call->lo, call->per_unit, bins, tables, call->counts, 0};
    walk_down(call, &h.v, 0, call->x, 0);
    flush(&h);
    free(tables);
    return 0;
}
