/* Resize, portable. */
#include "qk_kernels.h"

static uint8_t saturate(int64_t sum) {
    const int64_t code = (sum + (1 << (QK_RESIZE_BITS - 1))) >> QK_RESIZE_BITS;
    return (uint8_t)(code < 0 ? 0 : code > 255 ? 255 : code);
}

void qk_resize_row_u8x3_scalar(const uint8_t *x, int64_t pixel, uint8_t *y, int64_t plane, const qk_resize_axis *axis) {
    for (int64_t i = 0; i < axis->count; i++) {
        const uint8_t *from = x + pixel * axis->first[i];
        const int16_t *high = axis->high + i * axis->taps, *low = axis->low + i * axis->taps;
        int64_t sum[3] = {0, 0, 0};
        for (int64_t t = 0; t < axis->taps; t++) {
            const int32_t weight = high[t] * (1 << QK_RESIZE_LOW_BITS) + low[t];
            if (weight)
                for (int c = 0; c < 3; c++) sum[c] += from[pixel * t + c] * weight;
        }
        for (int c = 0; c < 3; c++) y[c * plane + i] = saturate(sum[c]);
    }
}

void qk_resize_column_u8_scalar(const uint8_t *x, int64_t stride, uint8_t *y, int64_t n, const int16_t *high,
                                const int16_t *low, int64_t taps) {
    for (int64_t i = 0; i < n; i++) {
        int64_t sum = 0;
        for (int64_t t = 0; t < taps; t++)
            sum += x[t * stride + i] * (high[t] * (1 << QK_RESIZE_LOW_BITS) + low[t]);
        y[i] = saturate(sum);
    }
}
