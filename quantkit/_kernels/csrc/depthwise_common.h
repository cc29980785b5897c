/* What the depthwise kernels share over the vectors of depthwise_zmm.h and depthwise_ymm.h: weights in the order of the
 * lanes, and the epilogue. The bytes of 4 taps are interleaved, so that a product adds them up. Where a panel has fewer
 * channels than a vector has bytes, 2 or 4 pixels lie side by side in it, from as many streams of pixels. */
#include <string.h>

#include "qk_kernels.h"

#include "qk_matmul_epilogue.h"

#define VECTOR (16 * LANES) /* bytes */
#define GROUPS 32           /* of 4 taps, whose weights fit the buffer; longer kernels take the portable path */

/* Vectors 2 half and 2 half + 1 of the 4 into which the bytes of 4 taps interleave. */
INLINE void interleave_half(vec a0, vec a1, vec a2, vec a3, int half, quads q[2]) {
    const vec a = half ? V(unpackhi_epi8)(a0, a1) : V(unpacklo_epi8)(a0, a1);
    const vec b = half ? V(unpackhi_epi8)(a2, a3) : V(unpacklo_epi8)(a2, a3);
    q[0] = quads_of(V(unpacklo_epi16)(a, b));
    q[1] = quads_of(V(unpackhi_epi16)(a, b));
}

INLINE void interleave(vec a0, vec a1, vec a2, vec a3, quads q[4]) {
    interleave_half(a0, a1, a2, a3, 0, q);
    interleave_half(a0, a1, a2, a3, 1, q + 2);
}

/* Some columns of a panel, as many as a vector has bytes or a part of that. */
typedef struct {
    weights w[GROUPS][4];
    vec start[4];
    reals scale[4];
    vec zero_point, low, high;
    int columns; /* that exist */
    int slow;    /* sums, floats, and codes with a table or a residual, or of sums that could leave the vector's range */
    int is_signed, clamped;
    int64_t offset;   /* of the columns in a pixel */
    char *c;
    qk_epilogue rest; /* of the columns, without what the accumulators begin with */
} prepared;

/* `columns` values of 4 bytes in the order of the lanes. Interleaving works in lanes: lane l of vector v holds the 4
 * channels from 16 (l % L) + 4 v on, where L lanes make a pixel. Packing the results in lanes as well brings the codes
 * back into order. */
INLINE void load_order(const void *values, int columns, int lanes_a_pixel, vec out[4]) {
    vec in[4]; /* 16 channels, or 8 */
    for (int k = 0; k < 4; k++) {
        const int first = LANES == 4 ? k % lanes_a_pixel * 16 : k / 2 % lanes_a_pixel * 16 + k % 2 * 8;
        in[k] = first < columns && values ? load_vector((const void *)((const char *)values + 4 * first)) : V(set1_epi32)(0);
    }
    transpose_lanes(in, out);
}

/* The weights of group g for columns [first, first + width) of the panel, all taps moved on by `shift` bits. */
INLINE void load_weights(const qk_matmul_tile *t, int64_t g, int first, int width, int lanes_a_pixel, int shift, weights w[4]) {
    vec bytes[4];
    load_order(t->b + 4 * (g * t->width + first), t->width - first < width ? t->width - first : width, lanes_a_pixel, bytes);
    for (int v = 0; v < 4; v++) w[v] = weights_of(V(slli_epi32)(bytes[v], shift));
}

/* Columns [first, first + width) of the panel. */
TARGET static void prepare(const qk_matmul_tile *t, int64_t groups, int first, int width, int lanes_a_pixel, prepared *m) {
    const qk_epilogue *e = &t->e;
    const int packed = t->width - first < width ? t->width - first : width;
    vec bytes[4];
    for (int64_t g = 0; g < groups; g++) load_weights(t, g, first, width, lanes_a_pixel, 0, m->w[g]);
    load_order(e->start ? e->start + first : NULL, packed, lanes_a_pixel, m->start);
    load_order(e->scale ? e->scale + first : NULL, packed, lanes_a_pixel, bytes);
    memcpy(m->scale, bytes, sizeof m->scale);
    m->columns = t->columns - first < width ? t->columns - first : width;
    m->offset = t->offset + first;
    m->is_signed = e->out == QK_OUT_S8;
    m->clamped = e->low > (m->is_signed ? -128 : 0) || e->high < (m->is_signed ? 127 : 255);
    m->zero_point = V(set1_epi16)((int16_t)e->zero_point);
    m->low = V(set1_epi8)((char)e->low);
    m->high = V(set1_epi8)((char)e->high);
    m->slow = e->out == QK_OUT_I32 || e->out == QK_OUT_F32 || e->residual || e->table;
    if (!m->slow) {
        /* Beyond int32, the conversion of a float would not saturate. */
        const reals products = V(set1_ps)(4.0f * (float)groups * 255 * 128), minus = V(set1_ps)(-1.0f);
        for (int v = 0; v < 4; v++) {
            const reals start = V(cvtepi32_ps)(m->start[v]), size = V(max_ps)(start, V(mul_ps)(start, minus));
            m->slow |= any_above(V(mul_ps)(V(add_ps)(size, products), m->scale[v]), 0x1p30f);
        }
    }
    const int64_t item = e->out == QK_OUT_I32 || e->out == QK_OUT_F32 ? 4 : 1;
    m->c = (char *)t->c + first * item;
    m->rest = *e;
    m->rest.start = NULL;
    if (e->scale) m->rest.scale += first;
    if (e->bias) m->rest.bias += first;
    if (e->residual) m->rest.residual += first;
}

/* Codes in 16 bits from the sums of two vectors. */
INLINE vec half_codes(vec a, vec b, reals a_scale, reals b_scale, vec zero_point) {
    a = V(cvtps_epi32)(V(mul_ps)(V(cvtepi32_ps)(a), a_scale));
    b = V(cvtps_epi32)(V(mul_ps)(V(cvtepi32_ps)(b), b_scale));
    return V(adds_epi16)(V(packs_epi32)(a, b), zero_point);
}

INLINE vec whole_codes(const prepared *m, vec ab, vec cd) {
    if (m->is_signed) {
        const vec codes = V(packs_epi16)(ab, cd);
        return m->clamped ? V(min_epi8)(V(max_epi8)(codes, m->low), m->high) : codes;
    }
    const vec codes = V(packus_epi16)(ab, cd);
    return m->clamped ? V(min_epu8)(V(max_epu8)(codes, m->low), m->high) : codes;
}

/* The sums of one pixel a stream, for the first `live` streams: those of pixel[s], by the portable epilogue. */
TARGET __attribute__((noinline)) static void finish_slowly(const qk_matmul_tile *t, const prepared *m, const vec acc[4],
                                                           const int64_t *pixel, int streams, int live) {
    _Alignas(64) int32_t sums[QK_PANEL];
    for (int v = 0; v < 4; v++)
        for (int l = 0; l < LANES; l++) memcpy(sums + 16 * l + 4 * v, (const char *)&acc[v] + 16 * l, 16);
    for (int s = 0; s < live; s++)
        qk_epilogue_row(&m->rest, pixel[s], m->columns, sums + VECTOR / streams * s, m->c + pixel[s] * t->c_stride);
}

INLINE void finish(const qk_matmul_tile *t, const prepared *m, const vec acc[4], const int64_t *pixel, int streams,
                   int live, int full) {
    if (m->slow) {
        finish_slowly(t, m, acc, pixel, streams, live);
        return;
    }
    char *to[4];
#pragma GCC unroll 4
    for (int s = 0; s < streams; s++) to[s] = m->c + pixel[s] * t->c_stride;
    const vec ab = half_codes(acc[0], acc[1], m->scale[0], m->scale[1], m->zero_point);
    const vec cd = half_codes(acc[2], acc[3], m->scale[2], m->scale[3], m->zero_point);
    store_streams(whole_codes(m, ab, cd), to, streams, live, full, m->columns);
}

/* How many of the columns that are left go together: as many as a vector has bytes, or a part of that. */
INLINE int part_width(int left) {
    for (int width = 16; width < VECTOR; width *= 2)
        if (left <= width) return width;
    return VECTOR;
}
