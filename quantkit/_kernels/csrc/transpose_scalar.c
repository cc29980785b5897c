/* Transposed bytes, portable. */
#include "qk_kernels.h"

void qk_transpose_u8_scalar(const uint8_t *x, int64_t x_stride, uint8_t *y, int64_t y_stride, int64_t rows,
                            int64_t columns, uint8_t flip) {
    for (int64_t c = 0; c < columns; c++)
        for (int64_t r = 0; r < rows; r++) y[c * y_stride + r] = x[r * x_stride + c] ^ flip;
}
