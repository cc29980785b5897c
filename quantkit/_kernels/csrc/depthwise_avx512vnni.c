/* Depthwise products of any kernel, 512-bit VNNI: each tap of each pixel lies where a pointer says. */
#include "qk_isa.h"

#if QK_X86
#include "depthwise_zmm.h"

INLINE __m512i load_tap(const qk_matmul_tile *t, int64_t tap, const int64_t *pixel, int streams, __mmask64 columns) {
    const uint8_t *at[4];
#pragma GCC unroll 4
    for (int s = 0; s < streams; s++) at[s] = qk_tile_row(t, tap, pixel[s]);
    return load_streams(at, streams, columns);
}

INLINE void run(const qk_matmul_tile *t, const prepared *m, int streams) {
    const int64_t groups = t->taps / 4, length = (t->rows + streams - 1) / streams;
    const __mmask64 columns = t->columns >= 64 ? ~0ull : ((__mmask64)1 << t->columns) - 1;
    for (int64_t i = 0; i < length; i++) {
        int64_t pixel[4], read[4], end[4];
#pragma GCC unroll 4
        for (int s = 0; s < streams; s++) {
            pixel[s] = s * length + i;
            end[s] = (s + 1) * length < t->rows ? (s + 1) * length : t->rows;
            read[s] = pixel[s] < t->rows ? pixel[s] : t->rows - 1; /* a stream that is over reads its last pixel again */
        }
        __m512i q[4], acc[4];
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) acc[v] = m->start[v];
        for (int64_t g = 0; g < groups; g++) {
            interleave(load_tap(t, 4 * g, read, streams, columns), load_tap(t, 4 * g + 1, read, streams, columns),
                       load_tap(t, 4 * g + 2, read, streams, columns), load_tap(t, 4 * g + 3, read, streams, columns), q);
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++) acc[v] = _mm512_dpbusd_epi32(acc[v], q[v], m->w[g][v]);
        }
        finish(t, m, acc, pixel, end, streams);
    }
}

#define RUN(S)                                                                                    \
    TARGET __attribute__((noinline)) static void run_##S(const qk_matmul_tile *t, const prepared *m) { run(t, m, S); }
RUN(1) RUN(2) RUN(4)

TARGET void qk_depthwise_u8s8_avx512vnni(const qk_matmul_tile *t) {
    const int streams = streams_for(t);
    prepared m;
    if (t->taps / 4 > GROUPS) {
        qk_depthwise_u8s8_scalar(t);
        return;
    }
    prepare(t, t->taps / 4, streams, &m);
    if (streams == 1) run_1(t, &m);
    else if (streams == 2) run_2(t, &m);
    else run_4(t, &m);
}
#endif
