/* Resize: the rows that are needed go through the row kernel into planes, these through the column kernel. */
#include "qk_resize.h"

#include <stdlib.h>
#include <string.h>

#include "qk_dispatch.h"

/* The row kernel loads 16 bytes at a pixel, and up to 3 taps of weight 0 lie behind the last one. */
#define BEYOND 32
#define MORE_ROWS 3 /* rows of weight 0 behind the last one */

int qk_resize_run(const qk_resize_call *call) {
    const qk_resize_axis *columns = &call->columns, *rows = &call->rows;
    qk_resize_row_fn *const row_kernel = (qk_resize_row_fn *)qk_table[QK_SLOT_resize_row_u8x3];
    qk_resize_column_fn *const column_kernel = (qk_resize_column_fn *)qk_table[QK_SLOT_resize_column_u8];
    int64_t begin = call->height, end = 0;
    for (int64_t i = 0; i < rows->count; i++) {
        int64_t last = rows->first[i] + rows->taps;
        last = last < call->height ? last : call->height;
        begin = rows->first[i] < begin ? rows->first[i] : begin;
        end = last > end ? last : end;
    }
    const int64_t stride = (columns->count + 63) / 64 * 64;
    const int64_t plane = stride * (end - begin + MORE_ROWS);
    const size_t bytes = (size_t)(call->pixel * call->width);
    uint8_t *planes = malloc(3 * (size_t)plane), *row = malloc(bytes + BEYOND);
    if (!planes || !row) {
        free(planes);
        free(row);
        return -1;
    }
    for (int c = 0; c < 3; c++)
        memset(planes + c * plane + stride * (end - begin), 0, (size_t)(stride * MORE_ROWS));
    memset(row + bytes, 0, BEYOND);
    for (int64_t i = begin; i < end; i++) {
        const uint8_t *from = call->x + i * call->x_stride;
        /* Loads beyond the end of a row see those behind it; the last ones are copied, so that they see nothing else. */
        if ((call->height - 1 - i) * call->x_stride < BEYOND) from = memcpy(row, from, bytes);
        row_kernel(from, call->pixel, planes + (i - begin) * stride, plane, columns);
    }
    for (int c = 0; c < 3; c++)
        for (int64_t i = 0; i < rows->count; i++)
            column_kernel(planes + c * plane + (rows->first[i] - begin) * stride, stride,
                          call->y + c * call->y_plane + i * call->y_stride, columns->count,
                          rows->high + i * rows->taps, rows->low + i * rows->taps, rows->taps);
    free(planes);
    free(row);
    return 0;
}
