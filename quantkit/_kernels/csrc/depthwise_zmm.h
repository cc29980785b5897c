/* What the 512-bit depthwise kernels share. The bytes of 4 taps are interleaved, so that one instruction multiplies and
 * adds them for 16 channels. Narrow panels take 2 or 4 pixels side by side, from as many streams of pixels. */
#include <immintrin.h>
#include <string.h>

#include "qk_kernels.h"

#define TARGET __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define INLINE static inline __attribute__((always_inline)) TARGET
#define GROUPS 32 /* of 4 taps, whose weights fit the buffer; longer kernels take the portable path */

#include "qk_matmul_epilogue.h"

/* Interleaving works in 128-bit lanes: lane l of vector v holds the 4 channels from 16 (l % V) + 4 v on, where V lanes
 * make a pixel. Packing the results in lanes as well brings the codes back into order. */
INLINE void reorder(const void *values, int lanes_a_pixel, void *out) {
    for (int v = 0; v < 4; v++)
        for (int l = 0; l < 4; l++)
            memcpy((char *)out + 64 * v + 16 * l, (const char *)values + 16 * (l % lanes_a_pixel * 4 + v), 16);
}

/* The bytes of all streams, each from its own place. */
INLINE __m512i load_streams(const uint8_t *const *at, int streams, __mmask64 columns) {
    if (streams == 1) return _mm512_maskz_loadu_epi8(columns, at[0]);
    if (streams == 2) {
        const __m256i a = _mm256_maskz_loadu_epi8((__mmask32)columns, at[0]);
        return _mm512_inserti64x4(_mm512_castsi256_si512(a), _mm256_maskz_loadu_epi8((__mmask32)columns, at[1]), 1);
    }
    const __mmask16 m = (__mmask16)columns;
    const __m128i a = _mm_maskz_loadu_epi8(m, at[0]), b = _mm_maskz_loadu_epi8(m, at[1]);
    const __m128i c = _mm_maskz_loadu_epi8(m, at[2]), d = _mm_maskz_loadu_epi8(m, at[3]);
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(c), d, 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

INLINE void interleave(__m512i a0, __m512i a1, __m512i a2, __m512i a3, __m512i q[4]) {
    const __m512i low01 = _mm512_unpacklo_epi8(a0, a1), high01 = _mm512_unpackhi_epi8(a0, a1);
    const __m512i low23 = _mm512_unpacklo_epi8(a2, a3), high23 = _mm512_unpackhi_epi8(a2, a3);
    q[0] = _mm512_unpacklo_epi16(low01, low23), q[1] = _mm512_unpackhi_epi16(low01, low23);
    q[2] = _mm512_unpacklo_epi16(high01, high23), q[3] = _mm512_unpackhi_epi16(high01, high23);
}

typedef struct {
    __m512i w[GROUPS][4], start[4];
    __m512 scale[4];
    int slow;
    qk_epilogue rest; /* without what the accumulators begin with */
} prepared;

/* Sums, floats, and codes with a table or a residual. */
TARGET __attribute__((noinline)) static void finish_rest(const qk_matmul_tile *t, const prepared *m, const __m512i *acc,
                                                         const int64_t *pixel, const int64_t *end, int streams) {
    _Alignas(64) int32_t sums[QK_PANEL];
    for (int v = 0; v < 4; v++)
        for (int l = 0; l < 4; l++) memcpy(sums + 16 * l + 4 * v, (const char *)&acc[v] + 16 * l, 16);
    for (int s = 0; s < streams; s++)
        if (pixel[s] < end[s])
            qk_epilogue_row(&m->rest, pixel[s], t->columns, sums + QK_PANEL / streams * s, (char *)t->c + pixel[s] * t->c_stride);
}

INLINE void finish(const qk_matmul_tile *t, const prepared *m, const __m512i acc[4], const int64_t *pixel,
                   const int64_t *end, int streams) {
    const qk_epilogue *e = &t->e;
    if (m->slow) {
        const __m512i copy[4] = {acc[0], acc[1], acc[2], acc[3]};
        finish_rest(t, m, copy, pixel, end, streams);
        return;
    }
    const __m512 far = _mm512_set1_ps(40000.0f); /* keeps the conversion in range; the packs saturate the rest */
    __m512i q[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++)
        q[v] = _mm512_cvtps_epi32(_mm512_min_ps(far, _mm512_mul_ps(_mm512_cvtepi32_ps(acc[v]), m->scale[v])));
    const __m512i zero_point = _mm512_set1_epi16((int16_t)e->zero_point);
    const __m512i ab = _mm512_adds_epi16(_mm512_packs_epi32(q[0], q[1]), zero_point);
    const __m512i cd = _mm512_adds_epi16(_mm512_packs_epi32(q[2], q[3]), zero_point);
    __m512i codes;
    if (e->out == QK_OUT_U8) {
        codes = _mm512_packus_epi16(ab, cd);
        codes = _mm512_max_epu8(codes, _mm512_set1_epi8((char)e->low));
        codes = _mm512_min_epu8(codes, _mm512_set1_epi8((char)e->high));
    } else {
        codes = _mm512_packs_epi16(ab, cd);
        codes = _mm512_max_epi8(codes, _mm512_set1_epi8((char)e->low));
        codes = _mm512_min_epi8(codes, _mm512_set1_epi8((char)e->high));
    }
    const __mmask64 columns = t->columns >= 64 ? ~0ull : ((__mmask64)1 << t->columns) - 1;
    char *c = (char *)t->c;
    if (streams == 1) {
        if (pixel[0] < end[0]) _mm512_mask_storeu_epi8(c + pixel[0] * t->c_stride, columns, codes);
    } else if (streams == 2) {
        if (pixel[0] < end[0])
            _mm256_mask_storeu_epi8(c + pixel[0] * t->c_stride, (__mmask32)columns, _mm512_castsi512_si256(codes));
        if (pixel[1] < end[1])
            _mm256_mask_storeu_epi8(c + pixel[1] * t->c_stride, (__mmask32)columns, _mm512_extracti64x4_epi64(codes, 1));
    } else {
        const __m128i lane[4] = {_mm512_castsi512_si128(codes), _mm512_extracti32x4_epi32(codes, 1),
                                 _mm512_extracti32x4_epi32(codes, 2), _mm512_extracti32x4_epi32(codes, 3)};
#pragma GCC unroll 4
        for (int s = 0; s < 4; s++)
            if (pixel[s] < end[s]) _mm_mask_storeu_epi8(c + pixel[s] * t->c_stride, (__mmask16)columns, lane[s]);
    }
}

INLINE int streams_for(const qk_matmul_tile *t) { return t->width == 16 ? 4 : t->width == 32 ? 2 : 1; }

/* The panel's weights and parameters in the order of the lanes. */
INLINE void prepare(const qk_matmul_tile *t, int64_t groups, int streams, prepared *m) {
    _Alignas(64) char row[4 * QK_PANEL] = {0}; /* what the panel has not is zero */
    for (int64_t g = 0; g < groups; g++) {
        memcpy(row, t->b + 4 * g * t->width, 4 * (size_t)t->width);
        reorder(row, 4 / streams, m->w[g]);
    }
    memset(row, 0, sizeof row);
    if (t->e.start) memcpy(row, t->e.start, 4 * (size_t)t->width);
    reorder(row, 4 / streams, m->start);
    memset(row, 0, sizeof row);
    if (t->e.scale) memcpy(row, t->e.scale, 4 * (size_t)t->width);
    reorder(row, 4 / streams, m->scale);
    m->slow = t->e.out == QK_OUT_I32 || t->e.out == QK_OUT_F32 || t->e.residual || t->e.table;
    m->rest = t->e;
    m->rest.start = NULL;
}
