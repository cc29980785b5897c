/* Bilinear resizing: two source rows at a time go through the row kernel, and are kept for the next output row. */
#include "qk_linear.h"

#include <stdlib.h>
#include <string.h>

#include "qk_dispatch.h"

#define BEYOND 32 /* the row kernel loads 8 bytes at a pixel, and its second one may lie behind the last */

static void grey_row(const uint8_t *x, int16_t *y, const qk_linear_axis *axis) {
    for (int64_t i = 0; i < axis->count; i++) {
        const uint8_t *from = x + axis->first[i];
        y[i] = (int16_t)((from[0] * axis->weights[2 * i] + from[1] * axis->weights[2 * i + 1]) >> 4);
    }
}

static void halve(const qk_linear_call *call) {
    const int64_t pixel = call->pixel;
    for (int64_t i = 0; i < call->rows.count; i++) {
        const uint8_t *a = call->x + 2 * i * call->x_stride, *b = a + call->x_stride;
        for (int c = 0; c < call->channels; c++) {
            uint8_t *to = call->y + c * call->y_plane + i * call->y_stride;
            for (int64_t j = 0; j < call->columns.count; j++) {
                const int64_t left = 2 * j * pixel + c, right = left + pixel;
                to[j] = (uint8_t)((a[left] + a[right] + b[left] + b[right] + 2) >> 2);
            }
        }
    }
}

int qk_linear_run(const qk_linear_call *call) {
    if (call->halve) {
        halve(call);
        return 0;
    }
    const qk_linear_axis *columns = &call->columns, *rows = &call->rows;
    qk_linear_row_fn *const row_kernel = (qk_linear_row_fn *)qk_table[QK_SLOT_linear_row_u8x3];
    qk_linear_column_fn *const column_kernel = (qk_linear_column_fn *)qk_table[QK_SLOT_linear_column_u8];
    const size_t bytes = (size_t)(call->pixel * call->width);
    const int64_t plane = (columns->count + 31) / 32 * 32;
    uint8_t *row = malloc(bytes + BEYOND);
    int16_t *kept = malloc(2 * sizeof *kept * (size_t)(call->channels * plane));
    if (!row || !kept) {
        free(row);
        free(kept);
        return -1;
    }
    memset(row + bytes, 0, BEYOND);
    int16_t *lines[2] = {kept, kept + call->channels * plane};
    int64_t holds[2] = {-1, -1};
    for (int64_t i = 0; i < rows->count; i++) {
        const int64_t wanted[2] = {rows->first[i], rows->second[i]};
        if (wanted[0] == holds[1]) { /* one row further down */
            int16_t *const line = lines[0];
            lines[0] = lines[1], lines[1] = line;
            holds[1] = holds[0], holds[0] = wanted[0];
        }
        for (int k = 0; k < 2; k++) {
            if (holds[k] == wanted[k]) continue;
            const uint8_t *from = call->x + wanted[k] * call->x_stride;
            /* Loads beyond the end of a row see those behind it; the last ones are copied. */
            if ((call->height - 1 - wanted[k]) * call->x_stride < BEYOND) from = memcpy(row, from, bytes);
            if (call->channels == 3)
                row_kernel(from, call->pixel, lines[k], plane, columns);
            else
                grey_row(from, lines[k], columns);
            holds[k] = wanted[k];
        }
        for (int c = 0; c < call->channels; c++)
            column_kernel(lines[0] + c * plane, lines[1] + c * plane, call->y + c * call->y_plane + i * call->y_stride,
                          columns->count, rows->weights + 2 * i);
    }
    free(row);
    free(kept);
    return 0;
}
