/* Bilinear resizing, portable. */
#include "qk_kernels.h"

void qk_linear_row_u8x3_scalar(const uint8_t *x, int64_t pixel, int16_t *y, int64_t plane, const qk_linear_axis *axis) {
    for (int64_t i = 0; i < axis->count; i++) {
        const uint8_t *from = x + pixel * axis->first[i];
        const int16_t *w = axis->weights + 2 * i;
        for (int c = 0; c < 3; c++) y[c * plane + i] = (int16_t)((from[c] * w[0] + from[c + pixel] * w[1]) >> 4);
    }
}

void qk_linear_column_u8_scalar(const int16_t *top, const int16_t *bottom, uint8_t *y, int64_t n, const int16_t *weights) {
    for (int64_t i = 0; i < n; i++)
        y[i] = (uint8_t)((((top[i] * weights[0]) >> 16) + ((bottom[i] * weights[1]) >> 16) + 2) >> 2);
}
