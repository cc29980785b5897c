/* Depthwise products of 3x3 kernels over whole rows of output pixels, for the vectors included before.
 *
 * A column of the input, 3 or 4 rows high, is interleaved once and serves the 3 output pixels that it belongs to. With
 * stride 1 its 4 rows serve two rows of output, by weights [w0 w1 w2 0] and [0 w0 w1 w2]. Each half of the channels takes
 * a pass of its own over a strip of pixels, so that its weights stay in registers. Padding costs no copy: rows outside of
 * the image are rows of zero points, columns outside a constant. */

#define STRIP 32 /* output pixels */

typedef struct {
    const uint8_t *at[4][4]; /* row y of stream s, pixel 0 */
    char *to[2][4];          /* first and second row of output */
    int64_t pixel[2][4];
    int live[2];             /* streams whose rows exist */
} row_group;

/* A column of input, interleaved: the first half of its channels to q, the other one to `later`. */
INLINE void column(const qk_depthwise_rows_tile *d, const prepared *m, const row_group *g, int64_t x, int streams, int high,
                   int full, quads q[2], quads later[2]) {
    vec a[4];
    if (x < 0 || x >= d->in_width) {
        q[0] = q[1] = later[0] = later[1] = quads_of(V(set1_epi8)((char)d->zero));
        return;
    }
    const int64_t by = x * d->step;
#pragma GCC unroll 4
    for (int y = 0; y < high; y++) {
        const uint8_t *at[4];
#pragma GCC unroll 4
        for (int s = 0; s < streams; s++) at[s] = g->at[s][y] + by;
        a[y] = load_streams(at, streams, full, m->columns);
    }
    if (high == 3) a[3] = a[2]; /* any: its weight is zero */
    interleave_half(a[0], a[1], a[2], a[3], 0, q);
    interleave_half(a[0], a[1], a[2], a[3], 1, later);
}

/* One half of the channels of output pixels [first, first + n). The first one leaves the columns of the second in `later`
 * and its own 16-bit codes in `kept`; or both leave their sums there. */
INLINE void pass(const qk_depthwise_rows_tile *d, const prepared *m, const row_group *group, int64_t first, int64_t n,
                 quads (*later)[2], vec *kept, int half, int streams, int stride, int full) {
    const int two = stride == 1, high = two ? 4 : 3, v = 2 * half;
    const row_group rows = *group, *g = &rows; /* what is written may alias no local */
    const int slow = m->slow;
    const vec zero_point = m->zero_point;
    const vec start[2] = {m->start[v], m->start[v + 1]};
    const reals scale[2] = {m->scale[v], m->scale[v + 1]};
    weights w[6][2];
    quads a[2], b[2], c[2];
#pragma GCC unroll 6
    for (int x = 0; x < 6; x++) w[x][0] = m->w[x][v], w[x][1] = m->w[x][v + 1];
    int64_t x = first * stride - d->pad;
#define NEXT(q)                                                                                   \
    do {                                                                                          \
        if (half) q[0] = (*later)[0], q[1] = (*later)[1];                                         \
        else column(d, m, g, x, streams, high, full, q, *later);                                  \
        x++, later++;                                                                             \
    } while (0)
    NEXT(a);
    if (two) NEXT(b);
    for (int64_t i = 0; i < n; i++) {
        if (!two) NEXT(b);
        NEXT(c);
#undef NEXT
#pragma GCC unroll 2
        for (int r = 0; r < 1 + two; r++) {
            vec sum[2];
#pragma GCC unroll 2
            for (int k = 0; k < 2; k++) {
                sum[k] = add_products(start[k], a[k], w[3 * r][k]);
                sum[k] = add_products(sum[k], b[k], w[3 * r + 1][k]);
                sum[k] = add_products(sum[k], c[k], w[3 * r + 2][k]);
            }
            if (slow) {
                kept[4 * (2 * i + r) + v] = sum[0];
                kept[4 * (2 * i + r) + v + 1] = sum[1];
                continue;
            }
            const vec codes = half_codes(sum[0], sum[1], scale[0], scale[1], zero_point);
            if (!half) {
                kept[2 * i + r] = codes;
                continue;
            }
            char *to[4];
#pragma GCC unroll 4
            for (int s = 0; s < streams; s++) to[s] = g->to[r][s] + (first + i) * d->t.c_stride;
            if (streams > 1 || r == 0 || g->live[r])
                store_streams(whole_codes(m, kept[2 * i + r], codes), to, streams, g->live[r], full, m->columns);
        }
#pragma GCC unroll 2
        for (int k = 0; k < 2; k++) {
            a[k] = two ? b[k] : c[k];
            if (two) b[k] = c[k];
        }
    }
}

#if LANES == 4
/* Output pixels [first, first + n) with stride 2, all channels at once: a column is multiplied as soon as it is interleaved
 * and only every second one is kept, so that 32 registers do for the weights of all channels and nothing goes to memory. */
INLINE void pass_of_two(const qk_depthwise_rows_tile *d, const prepared *m, const row_group *group, int64_t first, int64_t n,
                        vec *kept, int streams, int full) {
    const row_group rows = *group, *g = &rows; /* what is written may alias no local */
    const int slow = m->slow;
    weights w[3][4];
    quads a[4];
#pragma GCC unroll 3
    for (int x = 0; x < 3; x++)
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) w[x][v] = m->w[x][v];
    int64_t x = first * 2 - d->pad;
    column(d, m, g, x++, streams, 3, full, a, a + 2);
    for (int64_t i = 0; i < n; i++) {
        vec sum[4];
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) sum[v] = add_products(m->start[v], a[v], w[0][v]);
#pragma GCC unroll 2
        for (int k = 1; k < 3; k++) {
            column(d, m, g, x++, streams, 3, full, a, a + 2);
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++) sum[v] = add_products(sum[v], a[v], w[k][v]);
        }
        if (slow) {
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++) kept[8 * i + v] = sum[v];
            continue;
        }
        const vec ab = half_codes(sum[0], sum[1], m->scale[0], m->scale[1], m->zero_point);
        const vec cd = half_codes(sum[2], sum[3], m->scale[2], m->scale[3], m->zero_point);
        char *to[4];
#pragma GCC unroll 4
        for (int s = 0; s < streams; s++) to[s] = g->to[0][s] + (first + i) * d->t.c_stride;
        store_streams(whole_codes(m, ab, cd), to, streams, g->live[0], full, m->columns);
    }
}
#endif

INLINE void run_rows3(const qk_depthwise_rows_tile *d, const prepared *m, int streams, int stride, int full) {
    const int two = stride == 1;
    const int64_t width = d->out_width, rows = d->t.rows / width;
    vec kept[STRIP * 8];
    quads later[STRIP * 2 + 2][2];
    for (int64_t row = 0; row < rows; row += streams * (1 + two)) {
        row_group g = {.live = {0, 0}};
        for (int s = 0; s < streams; s++) {
            const int64_t first = row + s * (1 + two);
            for (int y = 0; y < 3 + two; y++) g.at[s][y] = d->rows[first * stride + y] + m->offset;
            for (int r = 0; r < 1 + two; r++) {
                g.pixel[r][s] = (first + r) * width;
                g.to[r][s] = m->c + g.pixel[r][s] * d->t.c_stride;
                g.live[r] += first + r < rows; /* rows beyond the last one are computed and not stored */
            }
        }
        for (int64_t first = 0; first < width; first += STRIP) {
            const int64_t n = width - first < STRIP ? width - first : STRIP;
#if LANES == 4
            if (!two) {
                pass_of_two(d, m, &g, first, n, kept, streams, full);
            } else
#endif
            {
                pass(d, m, &g, first, n, later, kept, 0, streams, stride, full);
                pass(d, m, &g, first, n, later, kept, 1, streams, stride, full);
            }
            for (int64_t i = 0; m->slow && i < n; i++)
                for (int r = 0; r < 1 + two; r++) {
                    int64_t pixel[4];
                    for (int s = 0; s < streams; s++) pixel[s] = g.pixel[r][s] + first + i;
                    finish_slowly(&d->t, m, kept + 4 * (2 * i + r), pixel, streams, g.live[r]);
                }
        }
    }
}

#define ROWS run_rows3
#include "depthwise_variants.h"

TARGET void FUNCTION3(const qk_depthwise_rows_tile *d) {
    prepared m;
    for (int first = 0, width; first < d->t.columns; first += width) {
        width = part_width(d->t.columns - first);
        prepare(&d->t, 3, first, width, width / 16, &m);
        for (int x = 0; x < 3; x++) load_weights(&d->t, x, first, width, width / 16, 8, m.w[3 + x]);
        run_rows3_part(d, &m, width);
    }
}
#undef STRIP
