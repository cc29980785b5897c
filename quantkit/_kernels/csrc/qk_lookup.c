#include "qk_lookup.h"

#include "qk_dispatch.h"

/* Dimensions d.. of the layout, with the table of the channel that the walk is in. */
static void walk_down(const qk_layout *l, qk_lookup_fn *kernel, int d, const uint8_t *x, uint8_t *y,
                      const uint8_t *table) {
    const int last = l->ndim - 1;
    const int64_t n = last < 0 ? 1 : l->shape[d];
    const int64_t x_step = last < 0 ? 1 : l->strides[0][d], y_step = last < 0 ? 1 : l->strides[1][d];
    const int64_t table_step = d == l->axis ? 256 : 0;
    if (d < last)
        for (int64_t i = 0; i < n; i++)
            walk_down(l, kernel, d + 1, x + i * x_step, y + i * y_step, table + i * table_step);
    else if (table_step == 0 && x_step == 1 && y_step == 1)
        kernel(x, y, n, table);
    else
        for (int64_t i = 0; i < n; i++) y[i * y_step] = table[i * table_step + x[i * x_step]];
}

void qk_lookup_run(const qk_lookup_call *call) {
    walk_down(&call->layout, (qk_lookup_fn *)qk_table[QK_SLOT_lookup_u8], 0, call->x, call->y, call->tables);
}
