/* The dispatch table: for each slot the best kernel that the active instruction set may use. */
#ifndef QK_DISPATCH_H
#define QK_DISPATCH_H

#include "qk_isa.h"

typedef struct {
    const char *slot;
    const char *family;
    qk_isa isa;
} qk_kernel_row;

/* The rows of qk_kernels.inc in order, for tests and benchmarks. */
const qk_kernel_row *qk_kernel_rows(int *count);

/* Fill the table for `isa`, which must be detected. Not thread safe: at import, and in tests. */
void qk_use_isa(qk_isa isa);
qk_isa qk_active_isa(void);

#endif
