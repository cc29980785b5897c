#include "qk_layout.h"

#include <stdlib.h>

#define MAX_INPUT_NDIM 64

static int mergeable(const qk_layout *l, int outer, int inner) {
    if (outer == l->axis || inner == l->axis) return 0;
    for (int k = 0; k < l->operands; k++)
        if (l->strides[k][outer] != l->strides[k][inner] * l->shape[inner]) return 0;
    return 1;
}

int qk_layout_init(qk_layout *l, int ndim, const int64_t *shape, int operands, const int64_t *const *strides, int axis) {
    int order[MAX_INPUT_NDIM], kept = 0;
    if (ndim > MAX_INPUT_NDIM) return -1;
    l->operands = operands;
    l->axis = -1;
    l->ndim = 0;
    /* Insertion sort by decreasing stride of the written operand; equal strides keep their order. */
    for (int d = 0; d < ndim; d++) {
        if (shape[d] == 1) continue;
        int at = kept++;
        for (; at > 0; at--) {
            const int64_t before = llabs(strides[operands - 1][order[at - 1]]), now = llabs(strides[operands - 1][d]);
            if (before >= now) break;
            order[at] = order[at - 1];
        }
        order[at] = d;
    }
    for (int i = 0; i < kept; i++) {
        if (l->ndim == QK_MAX_NDIM) return -1;
        const int at = l->ndim++, d = order[i];
        l->shape[at] = shape[d];
        for (int k = 0; k < operands; k++) l->strides[k][at] = strides[k][d];
        if (d == axis) l->axis = at;
        if (at > 0 && mergeable(l, at - 1, at)) {
            l->shape[at - 1] *= l->shape[at];
            for (int k = 0; k < operands; k++) l->strides[k][at - 1] = l->strides[k][at];
            l->ndim--;
        }
    }
    return 0;
}
