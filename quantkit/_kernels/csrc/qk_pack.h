/* Packing in plain C, compiled once for each instruction set that packs: include it with TARGET defined. */
#include <string.h>

/* Columns from `first` on of group g, any strides. */
TARGET static inline void qk_pack_columns(qk_panel *p, int64_t g, int first) {
    const int rows = p->k - 4 * g < 4 ? (int)(p->k - 4 * g) : 4;
    int8_t *out = p->out + 4 * (g * p->width + first);
    const char *b = p->b + 4 * g * p->row_stride + first * p->column_stride;
    for (int n = first; n < p->columns; n++, out += 4, b += p->column_stride) {
        uint8_t four[4] = {p->flip, p->flip, p->flip, p->flip};
        if (rows == 4 && p->row_stride == 1)
            memcpy(four, b, 4);
        else
            for (int j = 0; j < rows; j++) four[j] = (uint8_t)b[j * p->row_stride];
        int32_t sum = 0;
        for (int j = 0; j < 4; j++) {
            out[j] = (int8_t)(four[j] ^ p->flip);
            sum += out[j];
            p->low = out[j] < p->low ? out[j] : p->low;
            p->high = out[j] > p->high ? out[j] : p->high;
        }
        p->colsum[n] += sum;
    }
    memset(p->out + 4 * (g * p->width + p->columns), 0, 4 * (size_t)(p->width - p->columns));
}
