/* Packing a panel, AVX2: 32 columns of 4 rows at a time become groups, and their sums are taken on the way. */
#include "qk_isa.h"

#if QK_X86
#include <immintrin.h>

#include "qk_kernels.h"

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) TARGET
#include "qk_pack.h"

/* Store 8 columns of 4 bytes; take them into the sums and the bounds. */
INLINE void keep(int8_t *out, int32_t *colsum, __m256i v, __m256i *low, __m256i *high) {
    const __m256i ones = _mm256_set1_epi16(1), even = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
    const __m256i pairs = _mm256_add_epi16(even, _mm256_srai_epi16(v, 8));
    const __m256i sum = _mm256_add_epi32(_mm256_loadu_si256((const __m256i *)colsum), _mm256_madd_epi16(pairs, ones));
    _mm256_storeu_si256((__m256i *)out, v);
    _mm256_storeu_si256((__m256i *)colsum, sum);
    *low = _mm256_min_epi8(*low, v);
    *high = _mm256_max_epi8(*high, v);
}

INLINE __m256i row(const char *b, __m256i flip) {
    return _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)b), flip);
}

/* 32 bytes of each of 8 columns that lie along memory: a transpose of 8 by 8 words. */
INLINE void turn(qk_panel *p, int64_t g, int n, __m256i flip, __m256i *low, __m256i *high) {
    const char *b = p->b + 4 * g + n * p->column_stride;
    __m256i r[8], s[8];
#pragma GCC unroll 8
    for (int c = 0; c < 8; c++) r[c] = row(b + c * p->column_stride, flip);
#pragma GCC unroll 4
    for (int c = 0; c < 8; c += 2) {
        s[c] = _mm256_unpacklo_epi32(r[c], r[c + 1]);
        s[c + 1] = _mm256_unpackhi_epi32(r[c], r[c + 1]);
    }
#pragma GCC unroll 2
    for (int c = 0; c < 8; c += 4) {
        r[c] = _mm256_unpacklo_epi64(s[c], s[c + 2]);
        r[c + 1] = _mm256_unpackhi_epi64(s[c], s[c + 2]);
        r[c + 2] = _mm256_unpacklo_epi64(s[c + 1], s[c + 3]);
        r[c + 3] = _mm256_unpackhi_epi64(s[c + 1], s[c + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        int8_t *out = p->out + 4 * ((g + i) * p->width + n);
        keep(out, p->colsum + n, _mm256_permute2x128_si256(r[i], r[i + 4], 0x20), low, high);
        keep(out + 16 * p->width, p->colsum + n, _mm256_permute2x128_si256(r[i], r[i + 4], 0x31), low, high);
    }
}

TARGET void qk_pack_panel_avx2(qk_panel *p) {
    const int64_t groups = qk_groups(p->k), whole = p->k / 4;
    const int by_rows = p->column_stride == 1, by_columns = p->row_stride == 1;
    const int wide = by_rows ? p->columns / 32 * 32 : by_columns ? p->columns / 8 * 8 : 0;
    const __m256i flip = _mm256_set1_epi8((char)p->flip);
    __m256i low = _mm256_setzero_si256(), high = low;
    int64_t g = 0;
    for (; by_columns && !by_rows && g + 8 <= whole; g += 8) {
        for (int n = 0; n < wide; n += 8) turn(p, g, n, flip, &low, &high);
        for (int i = 0; i < 8 && wide < p->width; i++) qk_pack_columns(p, g + i, wide);
    }
    for (; g < groups; g++) {
        int n = 0;
        const char *b = p->b + 4 * g * p->row_stride;
        if (g < whole && by_rows) {
            for (; n < wide; n += 32) {
                const __m256i r0 = row(b + n, flip), r1 = row(b + p->row_stride + n, flip);
                const __m256i r2 = row(b + 2 * p->row_stride + n, flip), r3 = row(b + 3 * p->row_stride + n, flip);
                const __m256i a0 = _mm256_unpacklo_epi8(r0, r1), a1 = _mm256_unpackhi_epi8(r0, r1);
                const __m256i b0 = _mm256_unpacklo_epi8(r2, r3), b1 = _mm256_unpackhi_epi8(r2, r3);
                const __m256i q0 = _mm256_unpacklo_epi16(a0, b0), q1 = _mm256_unpackhi_epi16(a0, b0);
                const __m256i q2 = _mm256_unpacklo_epi16(a1, b1), q3 = _mm256_unpackhi_epi16(a1, b1);
                int8_t *out = p->out + 4 * (g * p->width + n);
                int32_t *colsum = p->colsum + n;
                keep(out, colsum, _mm256_permute2x128_si256(q0, q1, 0x20), &low, &high);
                keep(out + 32, colsum + 8, _mm256_permute2x128_si256(q2, q3, 0x20), &low, &high);
                keep(out + 64, colsum + 16, _mm256_permute2x128_si256(q0, q1, 0x31), &low, &high);
                keep(out + 96, colsum + 24, _mm256_permute2x128_si256(q2, q3, 0x31), &low, &high);
            }
        }
        if (n < p->width) qk_pack_columns(p, g, n);
    }
    int8_t lows[32], highs[32];
    _mm256_storeu_si256((__m256i *)lows, low);
    _mm256_storeu_si256((__m256i *)highs, high);
    for (int i = 0; i < 32; i++) {
        p->low = lows[i] < p->low ? lows[i] : p->low;
        p->high = highs[i] > p->high ? highs[i] : p->high;
    }
}
#endif
