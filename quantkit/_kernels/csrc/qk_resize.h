/* Resizing 8-bit pixels in fixed point: along the rows, then along the columns, with a rounded byte between the two. */
#ifndef QK_RESIZE_H
#define QK_RESIZE_H

#include <stdint.h>

/* Weights of one axis. Output i is the sum over t < taps of source[first[i] + t] * (high[i][t] * 2^11 + low[i][t]),
 * rounded at QK_RESIZE_BITS. `taps` is a multiple of 4; weights of taps beyond the source are 0. */
typedef struct {
    const int32_t *first;
    const int16_t *high, *low;
    int64_t count, taps;
} qk_resize_axis;

#define QK_RESIZE_BITS 22
#define QK_RESIZE_LOW_BITS 11

typedef struct {
    const uint8_t *x; /* height rows of width pixels of 3 bytes, or of 4 whose last one is nothing, one behind the other */
    int64_t height, width, pixel, x_stride;
    uint8_t *y; /* 3 planes of rows.count rows */
    int64_t y_plane, y_stride;
    qk_resize_axis columns, rows; /* along a row, and down a column */
} qk_resize_call;

/* Returns -1 where there is no memory. */
int qk_resize_run(const qk_resize_call *call);

#endif
