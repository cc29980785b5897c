#include "qk_dispatch.h"

static const qk_kernel_row rows[] = {
#define ISA_scalar QK_ISA_SCALAR
#define ISA_avx2 QK_ISA_AVX2
#define ISA_avx512 QK_ISA_AVX512
#define ISA_avxvnni QK_ISA_AVXVNNI
#define ISA_avx512vnni256 QK_ISA_AVX512VNNI256
#define ISA_avx512vnni QK_ISA_AVX512VNNI
#define ISA_avx512vbmi QK_ISA_AVX512VBMI
#define QK_KERNEL(family, slot, isa) {#family, #slot, ISA_##isa},
#include "qk_kernels.inc"
#undef QK_KERNEL
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static const qk_any_fn functions[ROWS] = {
#define QK_KERNEL(family, slot, isa) (qk_any_fn)qk_##slot##_##isa,
#include "qk_kernels.inc"
#undef QK_KERNEL
};

/* The slot that each row serves. */
static const int slots[ROWS] = {
#define QK_KERNEL(family, slot, isa) QK_SLOT_##slot,
#include "qk_kernels.inc"
#undef QK_KERNEL
};

qk_any_fn qk_table[QK_SLOT_COUNT];
static qk_isa active = QK_ISA_SCALAR;

const qk_kernel_row *qk_kernel_rows(int *count) {
    *count = ROWS;
    return rows;
}

qk_isa qk_active_isa(void) { return active; }

void qk_use_isa(qk_isa isa) {
    const uint32_t usable = qk_isa_includes(isa);
    int best[QK_SLOT_COUNT];
    for (int s = 0; s < QK_SLOT_COUNT; s++) best[s] = -1;
    for (int i = 0; i < ROWS; i++) {
        const int s = slots[i];
        if (usable >> rows[i].isa & 1 && (best[s] < 0 || rows[i].isa > rows[best[s]].isa)) best[s] = i;
    }
    for (int s = 0; s < QK_SLOT_COUNT; s++) qk_table[s] = functions[best[s]];
    active = isa;
}
