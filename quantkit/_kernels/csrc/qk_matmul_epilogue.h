/* The epilogue in plain C, compiled once for each instruction set: include it with TARGET defined.
 * `acc` holds `columns` finished sums of one row; they become one row of c. */
#include <string.h>

/* Round half to even at the unit; t lies far below 2^22. */
#define QK_ROUND(t) (((t) + 0x1.8p23f) - 0x1.8p23f)

TARGET static inline float qk_bounded(float t, float low, float high) {
    t = t >= low ? t : low;
    return t <= high ? t : high;
}

TARGET static inline void qk_epilogue_start(const qk_epilogue *e, int64_t row, int columns, int32_t *acc) {
    /* Unsigned arithmetic: the sums wrap. */
    uint32_t *sum = (uint32_t *)acc;
    if (e->start)
        for (int n = 0; n < columns; n++) sum[n] += (uint32_t)e->start[n];
    if (e->row)
        for (int n = 0; n < columns; n++) sum[n] += (uint32_t)e->row[row] * (uint32_t)e->b_zero[n];
    if (e->a_zero)
        for (int n = 0; n < columns; n++) sum[n] += (uint32_t)e->a_zero[row] * (uint32_t)e->colsum[n];
}

TARGET static inline void qk_epilogue_codes(const qk_epilogue *e, int64_t row, int columns, const int32_t *acc,
                                            uint8_t *c) {
    const int sum_of_two = e->residual != 0, is_signed = e->out == QK_OUT_S8;
    const float zero = (float)(sum_of_two ? e->own_zero_point : e->zero_point);
    const float low = (float)(sum_of_two ? (is_signed ? -128 : 0) : e->low) - zero;
    const float high = (float)(sum_of_two ? (is_signed ? 127 : 255) : e->high) - zero;
    int32_t q[QK_PANEL];
    for (int n = 0; n < columns; n++)
        q[n] = (int32_t)(QK_ROUND(qk_bounded((float)acc[n] * e->scale[n], low, high)) + zero);
    if (sum_of_two) {
        const uint8_t *residual = e->residual + row * e->residual_stride;
        const float bottom = (float)(e->low - e->zero_point), top = (float)(e->high - e->zero_point);
        for (int n = 0; n < columns; n++) {
            const int32_t other = e->residual_is_signed ? (int8_t)residual[n] : residual[n];
            const float own = e->own_ratio * (float)(q[n] - e->own_zero_point);
            const float theirs = e->residual_ratio * (float)(other - e->residual_zero_point);
            q[n] = (int32_t)QK_ROUND(qk_bounded(own + theirs, bottom, top)) + e->zero_point;
        }
    }
    if (e->table)
        for (int n = 0; n < columns; n++) c[n] = e->table[(uint8_t)q[n]];
    else
        for (int n = 0; n < columns; n++) c[n] = (uint8_t)q[n];
}

TARGET static inline void qk_epilogue_row(const qk_epilogue *e, int64_t row, int columns, int32_t *acc, void *c) {
    qk_epilogue_start(e, row, columns, acc);
    if (e->out == QK_OUT_I32) {
        memcpy(c, acc, (size_t)columns * 4);
    } else if (e->out == QK_OUT_F32) {
        float *out = c;
        if (e->bias)
            for (int n = 0; n < columns; n++) out[n] = (float)acc[n] * e->scale[n] + e->bias[n];
        else
            for (int n = 0; n < columns; n++) out[n] = (float)acc[n] * e->scale[n];
    } else {
        qk_epilogue_codes(e, row, columns, acc, c);
    }
}
