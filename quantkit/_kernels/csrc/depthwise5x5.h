/* Depthwise products of 5x5 kernels over whole rows of output pixels, for the vectors included before.
 *
 * Of the 5 rows of input, 4 are interleaved by columns, as for 3x3; of the last one, 4 pixels side by side are, and serve
 * as the first 4 taps of one output pixel and as the fifth of another. A strip of columns is interleaved into the first
 * level of the cache; then each vector of channels runs over it with its 7 weights in registers. */

#define STRIP 16 /* output pixels */

INLINE vec pixel_of(const qk_depthwise_rows_tile *d, const prepared *m, const uint8_t *const at[4][5], int64_t x, int y,
                    int streams, int full) {
    const uint8_t *from[4];
    if (x < 0 || x >= d->in_width) return V(set1_epi8)((char)d->zero);
#pragma GCC unroll 4
    for (int s = 0; s < streams; s++) from[s] = at[s][y] + x * d->step;
    return load_streams(from, streams, full, m->columns);
}

INLINE void run_rows5(const qk_depthwise_rows_tile *d, const prepared *m, int streams, int stride, int full) {
    const qk_matmul_tile *t = &d->t;
    const int64_t width = d->out_width, rows = t->rows / width;
    quads columns[2 * STRIP + 4][4], last[STRIP + 4][4];
    vec sums[STRIP][4];
    for (int64_t row = 0; row < rows; row += streams) {
        const uint8_t *at[4][5];
        const int live = rows - row < streams ? (int)(rows - row) : streams;
        for (int s = 0; s < streams; s++)
            for (int y = 0; y < 5; y++) at[s][y] = d->rows[(row + s) * stride + y] + m->offset;
        for (int64_t first = 0; first < width; first += STRIP) {
            const int64_t n = width - first < STRIP ? width - first : STRIP, left = first * stride - d->pad;
            for (int64_t x = 0; x < (n - 1) * stride + 5; x++) {
                vec a[4];
#pragma GCC unroll 4
                for (int y = 0; y < 4; y++) a[y] = pixel_of(d, m, at, left + x, y, streams, full);
                interleave(a[0], a[1], a[2], a[3], columns[x]);
            }
            for (int64_t i = 0; i < n + 4 / stride; i++) {
                vec a[4];
#pragma GCC unroll 4
                for (int x = 0; x < 4; x++) a[x] = pixel_of(d, m, at, left + i * stride + x, 4, streams, full);
                interleave(a[0], a[1], a[2], a[3], last[i]);
            }
            for (int v = 0; v < 4; v++) {
                const weights w0 = m->w[0][v], w1 = m->w[1][v], w2 = m->w[2][v], w3 = m->w[3][v], w4 = m->w[4][v];
                const weights w5 = m->w[5][v], w6 = m->w[6][v];
                const vec start = m->start[v];
#pragma GCC unroll 2
                for (int64_t i = 0; i < n; i++) {
                    quads(*c)[4] = columns + i * stride;
                    vec even = add_products(start, c[0][v], w0);
                    vec odd = add_products(V(set1_epi32)(0), c[1][v], w1);
                    even = add_products(even, c[2][v], w2);
                    odd = add_products(odd, c[3][v], w3);
                    even = add_products(even, c[4][v], w4);
                    odd = add_products(odd, last[i][v], w5);
                    even = add_products(even, last[i + 4 / stride][v], w6);
                    sums[i][v] = V(add_epi32)(even, odd);
                }
            }
            for (int64_t i = 0; i < n; i++) {
                int64_t pixel[4];
#pragma GCC unroll 4
                for (int s = 0; s < streams; s++) pixel[s] = (row + s) * width + first + i;
                finish(t, m, sums[i], pixel, streams, live, full);
            }
        }
    }
}

#define ROWS run_rows5
#include "depthwise_variants.h"

TARGET void FUNCTION5(const qk_depthwise_rows_tile *d) {
    prepared m;
    for (int first = 0, width; first < d->t.columns; first += width) {
        width = part_width(d->t.columns - first);
        prepare(&d->t, 7, first, width, width / 16, &m);
        run_rows5_part(d, &m, width);
    }
}
#undef STRIP
