/* Bilinear resizing of 8-bit pixels as OpenCV's INTER_LINEAR does it: two neighbours on each axis, weights of 11 bits. */
#ifndef QK_LINEAR_H
#define QK_LINEAR_H

#include <stdint.h>

/* Output i of an axis lies between two source positions, with weights that add up to about 2048. Along a row the second
 * is the one behind the first, or its weight is 0. */
typedef struct {
    const int32_t *first, *second;
    const int16_t *weights; /* two for each output */
    int64_t count;
} qk_linear_axis;

typedef struct {
    const uint8_t *x; /* height rows of width pixels, one behind the other: 1 byte (grey), 3, or 4 whose last is nothing */
    int64_t height, width, pixel, x_stride;
    int channels; /* 1 or 3 */
    uint8_t *y; /* `channels` planes of rows.count rows */
    int64_t y_plane, y_stride;
    qk_linear_axis columns, rows;
    int halve; /* each output is the rounded mean of 2 x 2 pixels instead; the axes hold their counts only */
} qk_linear_call;

/* Returns -1 where there is no memory. */
int qk_linear_run(const qk_linear_call *call);

#endif
