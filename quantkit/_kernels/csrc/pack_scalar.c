/* Packing a panel, portable. */
#include "qk_kernels.h"

#define TARGET
#include "qk_pack.h"

void qk_pack_panel_scalar(qk_panel *p) {
    for (int64_t g = 0; g < qk_groups(p->k); g++) qk_pack_columns(p, g, 0);
}
