/* Depthwise products of any kernel, for the vectors included before: each tap of each pixel lies where a pointer says. */

INLINE vec load_tap(const qk_matmul_tile *t, const prepared *m, int64_t tap, const int64_t *pixel, int streams, int full) {
    const uint8_t *at[4];
#pragma GCC unroll 4
    for (int s = 0; s < streams; s++) at[s] = t->at[tap * t->at_stride + pixel[s]] + m->offset;
    return load_streams(at, streams, full, m->columns);
}

INLINE void run_taps(const qk_matmul_tile *t, const prepared *m, int streams, int full) {
    const int64_t groups = t->taps / 4, length = (t->rows + streams - 1) / streams;
    for (int64_t i = 0; i < length; i++) {
        int64_t pixel[4], read[4];
        int live = 0;
#pragma GCC unroll 4
        for (int s = 0; s < streams; s++) {
            pixel[s] = s * length + i;
            live += pixel[s] < t->rows;
            read[s] = pixel[s] < t->rows ? pixel[s] : t->rows - 1; /* a stream that is over reads the last pixel again */
        }
        vec acc[4];
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) acc[v] = m->start[v];
        for (int64_t g = 0; g < groups; g++) {
            vec a[4];
            quads q[4];
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) a[k] = load_tap(t, m, 4 * g + k, read, streams, full);
            interleave(a[0], a[1], a[2], a[3], q);
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++) acc[v] = add_products(acc[v], q[v], m->w[g][v]);
        }
        finish(t, m, acc, pixel, streams, live, full);
    }
}

#define RUN(S, FULL)                                                                              \
    TARGET __attribute__((noinline)) static void taps_##S##_##FULL(const qk_matmul_tile *t, const prepared *m) { \
        run_taps(t, m, S, FULL);                                                                  \
    }
#define RUNS(S) RUN(S, 0) RUN(S, 1)
RUNS(1) RUNS(2)
#if LANES == 4
RUNS(4)
#endif

TARGET void FUNCTION(const qk_matmul_tile *t) {
    typedef void run_fn(const qk_matmul_tile *t, const prepared *m);
#if LANES == 4
    static run_fn *const runs[3][2] = {{taps_1_0, taps_1_1}, {taps_2_0, taps_2_1}, {taps_4_0, taps_4_1}};
#else
    static run_fn *const runs[2][2] = {{taps_1_0, taps_1_1}, {taps_2_0, taps_2_1}};
#endif
    prepared m;
    if (t->taps / 4 > GROUPS) {
        qk_depthwise_u8s8_scalar(t);
        return;
    }
    for (int first = 0, width; first < t->columns; first += width) {
        width = part_width(t->columns - first);
        prepare(t, t->taps / 4, first, width, width / 16, &m);
        runs[width == VECTOR ? 0 : width == VECTOR / 2 ? 1 : 2][m.columns == width](t, &m);
    }
}
#undef RUN
#undef RUNS
