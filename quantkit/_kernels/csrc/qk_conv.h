/* Integer convolutions over up to three spatial dimensions, channels-last inside: packed weights and the driver.
 *
 * y[p, n] = sum over taps s and channels c of (x[p * stride + s * dilation - pad, c] - x_zero) * (w[n, c, s] - w_zero[n])
 *
 * x outside of the image is x_zero; a negative pad leaves the first pixels out. It is the product of qk_matmul.h with rows that lie in pieces: what a', b', colsum
 * and the row terms mean stands there. Nothing is written out but what fits the caches: a block of output pixels reads
 * its input where it is, or, where that is signed or not channels-last, from a copy of the part it needs. */
#ifndef QK_CONV_H
#define QK_CONV_H

#include "qk_matmul.h"

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

#define QK_SPATIAL 3 /* depth, height, width; what a convolution has fewer of are leading ones */

typedef enum {
    QK_CONV_TAPS,     /* K = taps x channels of a group, each tap padded to a multiple of 4: rows in pieces */
    QK_CONV_LINES,    /* few channels: K = rows of the kernel, each its taps x channels padded to a multiple of 4 */
    QK_CONV_DEPTHWISE /* one channel a group: K = taps, and each output channel reads its own */
} qk_conv_form;

typedef struct {
    int64_t channels, outputs, group, kernel[QK_SPATIAL];
    qk_conv_form form;
    const qk_packed_matmul *packed; /* one a group; depthwise: a single one, with a column a channel */
    int square;                     /* depthwise: 3 or 5 where the order is that of qk_depthwise_rows_tile, else 0 */
    const int32_t *order;           /* depthwise: the tap of each row of the packed matrix, or -1 for none */
} qk_packed_conv;

/* Strides in bytes. The epilogue's arrays hold padded_columns(outputs / group) values a group, one group after another;
 * `row` is made here from `b_zero`, which depthwise weights do not have: theirs are packed without a zero point. */
typedef struct {
    const uint8_t *x;
    int64_t x_batch_stride, x_channel_stride, x_stride[QK_SPATIAL];
    int flip;       /* x is signed: 128 is added on the way */
    int32_t x_zero; /* of a' */
    int64_t batch, in[QK_SPATIAL], out[QK_SPATIAL], stride[QK_SPATIAL], dilation[QK_SPATIAL], pad[QK_SPATIAL];
    const qk_packed_conv *w;
    void *y;
    int64_t y_batch_stride, y_channel_stride, y_stride[QK_SPATIAL];
    int64_t residual_batch_stride; /* a residual has evenly spaced pixels, as y then must have */
    qk_epilogue e;
    int threads;
} qk_conv_call;

/* Returns 0, or -1 without scratch memory. */
int qk_conv_run(const qk_conv_call *call);

/* What one block of output pixels reads: the part [low, high) of one image, channels contiguous. */
typedef struct {
    const uint8_t *base; /* of pixel `low` */
    int64_t low[QK_SPATIAL], high[QK_SPATIAL], stride[QK_SPATIAL];
} qk_conv_source;

/* Depthwise outputs read a channel each: a copied source repeats the channels so often. */
static inline int64_t qk_conv_repeats(const qk_packed_conv *w) {
    return w->form == QK_CONV_DEPTHWISE ? w->outputs / w->group : 1;
}
static inline int64_t qk_conv_taps(const qk_packed_conv *w) { return w->kernel[0] * w->kernel[1] * w->kernel[2]; }

#define QK_CONV_SLACK 32 /* bytes that wide copies may read and write past the end */

/* The part of the image that output pixels [first, last) read, into s->low and s->high. */
void qk_conv_part(const qk_conv_call *call, int64_t first, int64_t last, qk_conv_source *s);
/* Bytes of a copy of that part, slack for wide reads included. */
int64_t qk_conv_copy_bytes(const qk_conv_call *call, const qk_conv_source *s);
void qk_conv_copy(const qk_conv_call *call, int64_t image, qk_conv_source *s, uint8_t *memory);
/* at[k * stride + p]: where tap order[k] (tap k where order is NULL) of output pixel first + p begins; `zeros` outside. */
void qk_conv_pointers(const qk_conv_call *call, const qk_conv_source *s, int64_t first, int64_t pixels,
                      const int32_t *order, int64_t count, const uint8_t *zeros, const uint8_t **at, int64_t stride);
/* Bytes of a row of the kernel, and with padding. */
static inline int64_t qk_conv_line(const qk_packed_conv *w) { return w->kernel[2] * w->channels; }
static inline int64_t qk_conv_padded_line(const qk_packed_conv *w) { return qk_groups(qk_conv_line(w)) * 4; }
/* A copy of the rows that the pixels read with their padding, so that the taps of a row of the kernel lie together and
 * the pixels of a row, and its taps, at even distances: s->base is then what pixel `first` reads, s->stride as always. The
 * kernel has no depth, and strides and dilations are short. */
int64_t qk_conv_lines_bytes(const qk_conv_call *call, int64_t first, int64_t pixels);
void qk_conv_lines(const qk_conv_call *call, int64_t image, int64_t first, int64_t pixels, uint8_t *memory, qk_conv_source *s);
/* Rows of the padded lines of the kernel, gathered from a copied source into rows `stride` apart. */
void qk_conv_gather(const qk_conv_call *call, const qk_conv_source *s, int64_t first, int64_t pixels, uint8_t *rows,
                    int64_t stride);

#endif
