/* What each family of micro-kernels looks like: pointers and sizes only, no shapes, no threads, no allocation. */
#ifndef QK_KERNELS_H
#define QK_KERNELS_H

#include <stdint.h>

#include "qk_isa.h"
#include "qk_matmul.h"
#include "qk_linear.h"
#include "qk_resize.h"
#include "qk_rnn.h"

/* Parameters of quantize and dequantize over one contiguous run.
 * Exactly one of zero_point and zero_point_f is set. Where `vector`, each points to one value an element. */
typedef struct {
    const float *scale;
    const int32_t *zero_point;
    const float *zero_point_f;
    int vector;
    int stream; /* write around the caches: the output is larger than they are */
} qk_affine;

/* Running range of the finite values; starts at lo = +inf, hi = -inf, nonfinite = 0. */
typedef struct {
    double lo, hi;
    int64_t nonfinite;
} qk_range;

/* y[i] = quantize(x[i]) or dequantize(x[i]). */
typedef void qk_affine_fn(const void *x, void *y, int64_t n, const qk_affine *p);
/* y[i] = (float)x[i], exact. */
typedef void qk_widen_fn(const void *x, float *y, int64_t n);
/* Merge the finite values of x into *r and count the others. */
typedef void qk_range_fn(const void *x, int64_t n, qk_range *r);
/* The same for each column: lo[i], hi[i] take in x[i]; returns how many values were not finite. */
typedef int64_t qk_range_columns_fn(const float *x, int64_t n, float *lo, float *hi);
/* counts[clamp(floor((x - lo) * per_unit), 0, bins - 1)]++ for each finite x, in QK_HISTOGRAM_TABLES tables of `bins`
 * counters side by side, which break the store-to-load chains of values that fall into one bin. */
typedef void qk_histogram_fn(const float *x, int64_t n, float lo, float per_unit, int32_t bins, uint32_t *tables);
#define QK_HISTOGRAM_TABLES 4
/* What the codes of x lose: sums of squares of x and of d = dequantize(code) - x, and the largest |d|. Added to, in float64,
 * once a call: the sums of a call are of float32, for a few thousand elements. */
typedef struct {
    double signal, noise;
    float most;
} qk_loss;
typedef void qk_error_fn(const float *x, const void *codes, int64_t n, const qk_affine *p, qk_loss *loss);
/* The register of a CRC-32 after n more bytes; it begins, and is shown, inverted. */
typedef uint32_t qk_crc32_fn(const void *x, int64_t n, uint32_t state);
/* y[i] = table[x[i]]; y may be x. */
typedef void qk_lookup_fn(const uint8_t *x, uint8_t *y, int64_t n, const uint8_t *table);

/* Depthwise: a tile whose rows come in pieces, one a tap, of `columns` channels each; column n of the panel multiplies
 * channel n alone. */
typedef qk_matmul_fn qk_depthwise_fn;
/* Depthwise 3x3 or 5x5 over t.rows / out_width whole rows of output pixels. Row r of output reads rows r * stride to + 2
 * or + 4 of input, each `in_width` pixels, `step` bytes apart; up to 8 rows of output beyond the last one are computed as
 * well, so that `rows` goes on. The panel has groups of 4 taps: for 3x3 a column each and a gap; for 5x5 the upper 4 taps
 * of a column each, then 4 of the last row, then its fifth and a gap. */
typedef struct {
    qk_matmul_tile t;
    const uint8_t *const *rows;
    int64_t step, in_width, out_width, pad; /* pixels before the first column */
    int stride;                       /* 1 or 2, in both directions */
    uint8_t zero;                     /* what lies left and right of a row */
} qk_depthwise_rows_tile;

typedef void qk_depthwise_rows_fn(const qk_depthwise_rows_tile *d);
#define QK_DEPTHWISE_ROWS_MORE 8
/* y[c * y_stride + r] = x[r * x_stride + c] ^ flip. */
typedef void qk_transpose_fn(const uint8_t *x, int64_t x_stride, uint8_t *y, int64_t y_stride, int64_t rows,
                             int64_t columns, uint8_t flip);

/* One row of pixels of 3 or 4 bytes to one row of each of 3 planes, `plane` bytes apart. 16 bytes may be read at each tap. */
typedef void qk_resize_row_fn(const uint8_t *x, int64_t pixel, uint8_t *y, int64_t plane, const qk_resize_axis *axis);
/* y[i] = sum over t < taps of x[t * stride + i] * weight t, rounded and saturated. */
typedef void qk_resize_column_fn(const uint8_t *x, int64_t stride, uint8_t *y, int64_t n, const int16_t *high,
                                 const int16_t *low, int64_t taps);

/* One row of pixels of 3 or 4 bytes to one row of each of 3 planes, `plane` elements apart, in units of 1/128. 8 bytes may
 * be read at each pixel. */
typedef void qk_linear_row_fn(const uint8_t *x, int64_t pixel, int16_t *y, int64_t plane, const qk_linear_axis *axis);
/* y[i] = (top[i] * w0 / 2^16 + bottom[i] * w1 / 2^16 + 2) / 4, each rounded down. */
typedef void qk_linear_column_fn(const int16_t *top, const int16_t *bottom, uint8_t *y, int64_t n,
                                 const int16_t *weights);

/* Rounding and saturation leave every code alone beyond this distance from zero: zero points lie in [-128, 255]. */
#define QK_FAR 2048.0f

/* Scales within these bounds take the reciprocal with one correction (see docs/numerics.md), others the division. */
#define QK_RECIPROCAL_MIN 0x1p-100f
#define QK_RECIPROCAL_MAX 0x1p100f

#define QK_KERNEL(family, slot, isa) qk_##family##_fn qk_##slot##_##isa;
#include "qk_kernels.inc"
#undef QK_KERNEL

#endif
