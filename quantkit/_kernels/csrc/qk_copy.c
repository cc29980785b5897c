#include "qk_copy.h"

#include "qk_memory.h"

#define TILE 32 /* rows and columns that are copied together where x and y are contiguous in different directions */

static void copy_run(const qk_copy_call *call, const char *x, int64_t x_step, char *y, int64_t y_step, int64_t n) {
    if (x_step == call->itemsize && y_step == call->itemsize) memcpy(y, x, (size_t)(n * call->itemsize));
    else qk_copy_strided(y, y_step, x, x_step, n, call->itemsize);
}

/* Two dimensions, tile by tile, so that each cache line of x is read once. */
static void copy_tiles(const qk_copy_call *call, int d, const char *x, char *y) {
    const qk_layout *l = &call->layout;
    const int64_t rows = l->shape[d], columns = l->shape[d + 1];
    for (int64_t i = 0; i < rows; i += TILE)
        for (int64_t k = 0; k < columns; k += TILE)
            for (int64_t r = i; r < rows && r < i + TILE; r++)
                copy_run(call, x + r * l->strides[0][d] + k * l->strides[0][d + 1], l->strides[0][d + 1],
                         y + r * l->strides[1][d] + k * l->strides[1][d + 1], l->strides[1][d + 1],
                         columns - k < TILE ? columns - k : TILE);
}

static void copy_down(const qk_copy_call *call, int d, const char *x, char *y) {
    const qk_layout *l = &call->layout;
    const int left = l->ndim - d;
    if (left <= 0) {
        memcpy(y, x, (size_t)call->itemsize);
    } else if (left == 1) {
        copy_run(call, x, l->strides[0][d], y, l->strides[1][d], l->shape[d]);
    } else if (left == 2 && l->strides[0][d + 1] != call->itemsize && l->strides[0][d] == call->itemsize) {
        copy_tiles(call, d, x, y);
    } else {
        for (int64_t i = 0; i < l->shape[d]; i++)
            copy_down(call, d + 1, x + i * l->strides[0][d], y + i * l->strides[1][d]);
    }
}

int qk_copy_run(const qk_copy_call *call) {
    copy_down(call, 0, call->x, call->y);
    return 0;
}
