/* How arrays of any strides become few dimensions and long contiguous runs. */
#ifndef QK_LAYOUT_H
#define QK_LAYOUT_H

#include <stdint.h>

#define QK_MAX_NDIM 16     /* after merging */
#define QK_MAX_OPERANDS 2

/* Dimensions shared by all operands, outermost first; strides in bytes. */
typedef struct {
    int ndim, operands;
    int axis; /* dimension of the channels, or -1 */
    int64_t shape[QK_MAX_NDIM];
    int64_t strides[QK_MAX_OPERANDS][QK_MAX_NDIM];
} qk_layout;

/* Order the dimensions by the strides of the last operand (the one that is written), drop those of length 1 and merge
 * what lies together in every operand; the channel axis is kept apart. `strides[k]` may be longer than QK_MAX_NDIM.
 * Returns 0, or -1 where more than QK_MAX_NDIM dimensions are left. No dimension may be of length 0. */
int qk_layout_init(qk_layout *l, int ndim, const int64_t *shape, int operands, const int64_t *const *strides, int axis);

#endif
