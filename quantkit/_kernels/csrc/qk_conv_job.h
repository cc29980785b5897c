/* One convolution on its way: how it is cut into blocks of output pixels, and what runs one. */
#ifndef QK_CONV_JOB_H
#define QK_CONV_JOB_H

#include <stdatomic.h>

#include "qk_conv.h"
#include "qk_kernels.h"

typedef struct {
    qk_conv_call call;
    int64_t pixels, block, blocks;  /* output pixels of an image, of a block; blocks of an image */
    int64_t group_panels, panels, panels_a_task, panel_tasks;
    int64_t outputs, depth, pieces; /* a group: output channels, bytes of a piece of a row, pieces */
    int64_t row_bytes;              /* of a gathered row, or 0 */
    int64_t item;
    int in_place, direct;           /* x is read, y is written where it lies */
    qk_depthwise_rows_fn *whole_rows; /* a depthwise kernel that takes rows of pixels, or NULL */
    int in_lines;                   /* rows of the kernel are pieces */
    int linear;                     /* pixels of x follow each other: no pointers */
    atomic_int failed; /* any of the threads may say so */
} qk_conv_job;

/* Whether pixels in their order are evenly spaced. */
static inline int qk_conv_even(const int64_t *size, const int64_t *stride) {
    return (size[1] == 1 || stride[1] == size[2] * stride[2]) &&
           (size[0] == 1 || stride[0] == size[1] * size[2] * stride[2]);
}

/* Panels [first_panel, last_panel) of output pixels [first, first + pixels) of an image, whole blocks of `job`. */
void qk_conv_block(qk_conv_job *job, int64_t image, int64_t first, int64_t pixels, int64_t first_panel, int64_t last_panel);

#endif
