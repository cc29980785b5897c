/* Depthwise products of 5x5 kernels over whole rows of output pixels, 512-bit VNNI.
 *
 * Of the 5 rows of input, 4 are interleaved by columns, as for 3x3; of the last one, 4 pixels side by side are, and serve
 * as the first 4 taps of one output pixel and as the fifth of another. A strip of columns is interleaved into the first
 * level of the cache; then each vector of channels runs over it with its 7 weights in registers. */
#include "qk_isa.h"

#if QK_X86
#include "depthwise_zmm.h"

#define STRIP 16 /* output pixels */

INLINE __m512i pixel_of(const qk_depthwise_rows_tile *d, const uint8_t *const at[4][5], const int64_t step[4][5], int64_t x,
                        int y, int streams, __mmask64 columns) {
    const uint8_t *from[4];
    if (x < 0 || x >= d->in_width) return _mm512_set1_epi8((char)d->zero);
#pragma GCC unroll 4
    for (int s = 0; s < streams; s++) from[s] = at[s][y] + x * step[s][y];
    return load_streams(from, streams, columns);
}

INLINE void run(const qk_depthwise_rows_tile *d, const prepared *m, int streams, int stride) {
    const qk_matmul_tile *t = &d->t;
    const int64_t width = d->out_width, out_rows = t->rows / width;
    const __mmask64 mask = t->columns >= 64 ? ~0ull : ((__mmask64)1 << t->columns) - 1;
    __m512i column[2 * STRIP + 4][4], last[STRIP + 4][4], sums[STRIP][4];
    for (int64_t row = 0; row < out_rows; row += streams) {
        const uint8_t *at[4][5];
        int64_t step[4][5];
        for (int s = 0; s < streams; s++)
            for (int y = 0; y < 5; y++) {
                at[s][y] = d->rows[(row + s) * stride + y] + t->offset;
                step[s][y] = d->steps[(row + s) * stride + y];
            }
        for (int64_t first = 0; first < width; first += STRIP) {
            const int64_t n = width - first < STRIP ? width - first : STRIP, left = first * stride - d->pad;
            for (int64_t x = 0; x < (n - 1) * stride + 5; x++) {
                __m512i a[4];
#pragma GCC unroll 4
                for (int y = 0; y < 4; y++) a[y] = pixel_of(d, at, step, left + x, y, streams, mask);
                interleave(a[0], a[1], a[2], a[3], column[x]);
            }
            for (int64_t i = 0; i < n + 4 / stride; i++) {
                __m512i a[4];
#pragma GCC unroll 4
                for (int x = 0; x < 4; x++) a[x] = pixel_of(d, at, step, left + i * stride + x, 4, streams, mask);
                interleave(a[0], a[1], a[2], a[3], last[i]);
            }
            for (int v = 0; v < 4; v++) {
                const __m512i w0 = m->w[0][v], w1 = m->w[1][v], w2 = m->w[2][v], w3 = m->w[3][v], w4 = m->w[4][v];
                const __m512i w5 = m->w[5][v], w6 = m->w[6][v], begin = m->start[v];
#pragma GCC unroll 2
                for (int64_t i = 0; i < n; i++) {
                    __m512i(*c)[4] = column + i * stride;
                    __m512i even = _mm512_dpbusd_epi32(begin, c[0][v], w0);
                    __m512i odd = _mm512_dpbusd_epi32(_mm512_setzero_si512(), c[1][v], w1);
                    even = _mm512_dpbusd_epi32(even, c[2][v], w2);
                    odd = _mm512_dpbusd_epi32(odd, c[3][v], w3);
                    even = _mm512_dpbusd_epi32(even, c[4][v], w4);
                    odd = _mm512_dpbusd_epi32(odd, last[i][v], w5);
                    even = _mm512_dpbusd_epi32(even, last[i + 4 / stride][v], w6);
                    sums[i][v] = _mm512_add_epi32(even, odd);
                }
            }
            for (int64_t i = 0; i < n; i++) {
                int64_t pixel[4], end[4];
#pragma GCC unroll 4
                for (int s = 0; s < streams; s++) {
                    pixel[s] = (row + s) * width + first + i;
                    end[s] = row + s < out_rows ? t->rows : 0;
                }
                finish(t, m, sums[i], pixel, end, streams);
            }
        }
    }
}

#define RUN(S, STRIDE)                                                                            \
    TARGET __attribute__((noinline)) static void run_##S##_##STRIDE(const qk_depthwise_rows_tile *d, const prepared *m) { \
        run(d, m, S, STRIDE);                                                                     \
    }
RUN(1, 1) RUN(1, 2) RUN(2, 1) RUN(2, 2) RUN(4, 1) RUN(4, 2)

TARGET void qk_depthwise5x5_u8s8_avx512vnni(const qk_depthwise_rows_tile *d) {
    const int streams = streams_for(&d->t);
    prepared m;
    prepare(&d->t, 7, streams, &m);
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
