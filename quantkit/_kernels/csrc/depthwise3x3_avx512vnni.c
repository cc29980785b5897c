/* Depthwise products of 3x3 kernels over whole rows of output pixels, 512-bit VNNI.
 *
 * A column of the input, 3 or 4 rows high, is interleaved once and serves the 3 output pixels that it belongs to. With
 * stride 1 its 4 rows serve two rows of output, by weights [w0 w1 w2 0] and [0 w0 w1 w2]. Panels of 32 and of 16 channels
 * run 2 or 4 such streams of rows side by side in one vector. Padding costs no copy: rows outside of the image are a row
 * of zero points with distance 0 from pixel to pixel, columns outside a constant. */
#include "qk_isa.h"

#if QK_X86
#include "depthwise_zmm.h"

/* Streams s of rows at[s][y], each `step` bytes from pixel to pixel. */
typedef struct {
    const uint8_t *at[4][4];
    int64_t step[4][4];
} streams_of_rows;

INLINE void column(const qk_depthwise_rows_tile *d, const streams_of_rows *rows, int64_t x, int streams, int high,
                   __mmask64 columns, __m512i zeros, __m512i q[4]) {
    if (x < 0 || x >= d->in_width) {
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) q[v] = zeros;
        return;
    }
    __m512i a[4];
#pragma GCC unroll 4
    for (int y = 0; y < high; y++) {
        const uint8_t *at[4];
#pragma GCC unroll 4
        for (int s = 0; s < streams; s++) at[s] = rows->at[s][y] + x * rows->step[s][y];
        a[y] = load_streams(at, streams, columns);
    }
    if (high == 3) a[3] = zeros; /* any: its weight is zero */
    interleave(a[0], a[1], a[2], a[3], q);
}

INLINE void add(const __m512i q[4], const __m512i w[4], __m512i acc[4]) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) acc[v] = _mm512_dpbusd_epi32(acc[v], q[v], w[v]);
}

INLINE void run(const qk_depthwise_rows_tile *d, const prepared *m, int streams, int stride) {
    const qk_matmul_tile *t = &d->t;
    const int64_t width = d->out_width, out_rows = t->rows / width;
    const int two = stride == 1, high = two ? 4 : 3; /* output rows a stream, input rows of theirs */
    const __mmask64 columns = t->columns >= 64 ? ~0ull : ((__mmask64)1 << t->columns) - 1;
    const __m512i zeros = _mm512_set1_epi8((char)d->zero);
    for (int64_t row = 0; row < out_rows; row += streams * (1 + two)) {
        streams_of_rows rows;
        int64_t first[4], second[4], end[4], end2[4];
        for (int s = 0; s < streams; s++) {
            const int64_t r = row + s * (1 + two);
            for (int y = 0; y < high; y++) {
                rows.at[s][y] = d->rows[r * stride + y] + t->offset;
                rows.step[s][y] = d->steps[r * stride + y];
            }
            /* Rows beyond the last one are computed from zero points and not stored. */
            first[s] = r * width, end[s] = r < out_rows ? first[s] + width : 0;
            second[s] = first[s] + width, end2[s] = r + 1 < out_rows ? second[s] + width : 0;
        }
        __m512i a[4], b[4], c[4], acc[4], acc2[4];
        int64_t x = -d->pad;
        column(d, &rows, x, streams, high, columns, zeros, a);
        if (two) column(d, &rows, x + 1, streams, high, columns, zeros, b);
        for (int64_t i = 0; i < width; i++, x += stride) {
            if (!two) column(d, &rows, x + 1, streams, high, columns, zeros, b);
            column(d, &rows, x + 2, streams, high, columns, zeros, c);
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++) acc[v] = m->start[v];
            add(a, m->w[0], acc);
            add(b, m->w[1], acc);
            add(c, m->w[2], acc);
            if (two) {
#pragma GCC unroll 4
                for (int v = 0; v < 4; v++) acc2[v] = m->start[v];
                add(a, m->w[3], acc2);
                add(b, m->w[4], acc2);
                add(c, m->w[5], acc2);
            }
            finish(t, m, acc, first, end, streams);
            if (two) finish(t, m, acc2, second, end2, streams);
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++) {
                a[v] = two ? b[v] : c[v];
                if (two) b[v] = c[v];
            }
            for (int s = 0; s < streams; s++) first[s]++, second[s]++;
        }
    }
}

#define RUN(S, STRIDE)                                                                            \
    TARGET __attribute__((noinline)) static void run_##S##_##STRIDE(const qk_depthwise_rows_tile *d, const prepared *m) { \
        run(d, m, S, STRIDE);                                                                     \
    }
RUN(1, 1) RUN(1, 2) RUN(2, 1) RUN(2, 2) RUN(4, 1) RUN(4, 2)

TARGET void qk_depthwise3x3_u8s8_avx512vnni(const qk_depthwise_rows_tile *d) {
    const int streams = streams_for(&d->t);
    prepared m;
    prepare(&d->t, 3, streams, &m);
    for (int x = 0; x < 3; x++)
        for (int v = 0; v < 4; v++) m.w[3 + x][v] = _mm512_slli_epi32(m.w[x][v], 8);
    switch (10 * streams + d->stride) {
        case 11: run_1_1(d, &m); break;
        case 12: run_1_2(d, &m); break;
        case 21: run_2_1(d, &m); break;
        case 22: run_2_2(d, &m); break;
        case 41: run_4_1(d, &m); break;
        default: run_4_2(d, &m); break;
    }
}
#endif
