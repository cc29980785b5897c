/* The driver of copies between arrays of any strides. */
#ifndef QK_COPY_H
#define QK_COPY_H

#include "qk_layout.h"

typedef struct {
    qk_layout layout; /* operand 0 is x, operand 1 is y */
    const char *x;
    char *y;
    int64_t itemsize; /* 1, 2, 4 or 8 */
} qk_copy_call;

/* y = x; they may not overlap. Returns 0. */
int qk_copy_run(const qk_copy_call *call);

#endif
