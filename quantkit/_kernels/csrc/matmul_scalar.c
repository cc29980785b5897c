/* Integer products, portable: also the statement in C of what the vector kernels compute. */
#include "qk_kernels.h"

#define TARGET
#include "qk_matmul_epilogue.h"

void qk_matmul_u8s8_scalar(const qk_matmul_tile *t) {
    for (int64_t m = 0; m < t->rows; m++) {
        uint32_t acc[QK_PANEL] = {0};
        for (int64_t s = 0; s < t->taps; s++) {
            const uint8_t *a = qk_tile_row(t, s, m);
            for (int64_t k = 0; k < t->k; k++) {
                const int8_t *b = t->b + (s * qk_groups(t->k) + k / 4) * 4 * t->width + k % 4;
                for (int n = 0; n < t->columns; n++) acc[n] += (uint32_t)(a[k] * b[4 * n]);
            }
        }
        qk_epilogue_row(&t->e, m, t->columns, (int32_t *)acc, (char *)t->c + m * t->c_stride);
    }
}
