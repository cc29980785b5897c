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

/* `place` says where tap (x, y) of the kernel lies in its panel. */
static inline void rows(const qk_depthwise_rows_tile *d, int size, int64_t (*place)(int x, int y, int64_t width)) {
    const qk_matmul_tile *t = &d->t;
    for (int64_t p = 0; p < t->rows; p++) {
        const int64_t row = p / d->out_width * d->stride, left = p % d->out_width * d->stride - d->pad;
        uint32_t acc[QK_PANEL] = {0};
        for (int x = 0; x < size; x++)
            for (int y = 0; y < size; y++) {
                const int outside = left + x < 0 || left + x >= d->in_width;
                const uint8_t *a = d->rows[row + y] + (outside ? 0 : (left + x) * d->step) + t->offset;
                const int8_t *b = t->b + place(x, y, 4 * (int64_t)t->width);
                for (int n = 0; n < t->columns; n++) acc[n] += (uint32_t)((outside ? d->zero : a[n]) * b[4 * n]);
            }
        qk_epilogue_row(&t->e, p, t->columns, (int32_t *)acc, (char *)t->c + p * t->c_stride);
    }
}

static int64_t place3x3(int x, int y, int64_t group) { return x * group + y; }
static int64_t place5x5(int x, int y, int64_t group) { return y < 4 ? x * group + y : (5 + x / 4) * group + x % 4; }

void qk_depthwise3x3_u8s8_scalar(const qk_depthwise_rows_tile *d) { rows(d, 3, place3x3); }
void qk_depthwise5x5_u8s8_scalar(const qk_depthwise_rows_tile *d) { rows(d, 5, place5x5); }
