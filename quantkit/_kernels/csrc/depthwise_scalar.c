/* Depthwise products, portable: c[p][n] = sum over k of a'[k][p][n] * b'[k][n]. */
#include "qk_kernels.h"

#define TARGET
#include "qk_matmul_epilogue.h"

void qk_depthwise_u8s8_scalar(const qk_matmul_tile *t) {
    for (int64_t p = 0; p < t->rows; p++) {
        uint32_t acc[QK_PANEL] = {0};
        for (int64_t k = 0; k < t->taps; k++) {
            const uint8_t *a = qk_tile_row(t, k, p);
            const int8_t *b = t->b + k / 4 * 4 * t->width + k % 4;
            for (int n = 0; n < t->columns; n++) acc[n] += (uint32_t)(a[n] * b[4 * n]);
        }
        qk_epilogue_row(&t->e, p, t->columns, (int32_t *)acc, (char *)t->c + p * t->c_stride);
    }
}

void qk_depthwise3x3_u8s8_scalar(const qk_depthwise3x3_tile *d) {
    const qk_matmul_tile *t = &d->t;
    for (int64_t p = 0; p < t->rows; p++) {
        const int64_t row = p / d->out_width * d->stride, left = p % d->out_width * d->stride - d->pad;
        uint32_t acc[QK_PANEL] = {0};
        for (int x = 0; x < 3; x++)
            for (int y = 0; y < 3; y++) {
                const int outside = left + x < 0 || left + x >= d->in_width;
                const uint8_t *a = d->rows[row + y] + (outside ? 0 : (left + x) * d->steps[row + y]) + t->offset;
                const int8_t *b = t->b + 4 * x * t->width + y;
                for (int n = 0; n < t->columns; n++) acc[n] += (uint32_t)((outside ? d->zero : a[n]) * b[4 * n]);
            }
        qk_epilogue_row(&t->e, p, t->columns, (int32_t *)acc, (char *)t->c + p * t->c_stride);
    }
}
