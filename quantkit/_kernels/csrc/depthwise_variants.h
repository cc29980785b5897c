/* The variants of ROWS(d, m, streams, stride, full), whose last three parameters are literals in each, and ROWS_part, which
 * runs the one that fits. */

#define NAMED_(rows, rest) rows##_##rest
#define NAMED(rows, rest) NAMED_(rows, rest)
#define RUN(S, STRIDE, FULL)                                                                      \
    TARGET __attribute__((noinline)) static void NAMED(ROWS, S##_##STRIDE##_##FULL)(const qk_depthwise_rows_tile *d, \
                                                                                    const prepared *m) { \
        ROWS(d, m, S, STRIDE, FULL);                                                              \
    }
#define RUNS(S) RUN(S, 1, 0) RUN(S, 1, 1) RUN(S, 2, 0) RUN(S, 2, 1)
RUNS(1) RUNS(2)
#if LANES == 4
RUNS(4)
#endif

/* The columns of `m`, of which a pixel takes `width` bytes of the vector. */
static void NAMED(ROWS, part)(const qk_depthwise_rows_tile *d, const prepared *m, int width) {
    typedef void run_fn(const qk_depthwise_rows_tile *d, const prepared *m);
#define EACH(S) {{NAMED(ROWS, S##_1_0), NAMED(ROWS, S##_1_1)}, {NAMED(ROWS, S##_2_0), NAMED(ROWS, S##_2_1)}}
    static run_fn *const runs[][2][2] = {
        EACH(1),
        EACH(2),
#if LANES == 4
        EACH(4),
#endif
    };
#undef EACH
    runs[width == VECTOR ? 0 : width == VECTOR / 2 ? 1 : 2][d->stride - 1][m->columns == width](d, m);
}
#undef RUNS
#undef RUN
#undef NAMED
#undef NAMED_
#undef ROWS
