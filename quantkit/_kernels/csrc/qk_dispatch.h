/* The dispatch table: for each slot the best kernel that the active instruction set may use. */
#ifndef QK_DISPATCH_H
#define QK_DISPATCH_H

#include "qk_kernels.h"

typedef struct {
    const char *family, *slot;
    qk_isa isa;
} qk_kernel_row;

/* The rows of qk_kernels.inc in order, for tests and benchmarks. */
const qk_kernel_row *qk_kernel_rows(int *count);

/* Slots are numbered by the portable rows: every slot has one. */
enum {
#define QK_SLOT_scalar(slot) QK_SLOT_##slot,
#define QK_SLOT_avx2(slot)
#define QK_SLOT_avx512(slot)
#define QK_SLOT_avxvnni(slot)
#define QK_SLOT_avx512vnni256(slot)
#define QK_SLOT_avx512vnni(slot)
#define QK_SLOT_avx512vbmi(slot)
#define QK_KERNEL(family, slot, isa) QK_SLOT_##isa(slot)
#include "qk_kernels.inc"
#undef QK_KERNEL
#undef QK_SLOT_scalar
#undef QK_SLOT_avx2
#undef QK_SLOT_avx512
#undef QK_SLOT_avxvnni
#undef QK_SLOT_avx512vnni256
#undef QK_SLOT_avx512vnni
#undef QK_SLOT_avx512vbmi
    QK_SLOT_COUNT
};

/* A kernel of any family; the caller casts it to the family of its slot. */
typedef void (*qk_any_fn)(void);

/* Filled by qk_use_isa, read by the drivers. */
extern qk_any_fn qk_table[QK_SLOT_COUNT];

/* Fill the table for `isa`, which must be detected. Not thread safe: at import, and in tests. */
void qk_use_isa(qk_isa isa);
qk_isa qk_active_isa(void);

#endif
