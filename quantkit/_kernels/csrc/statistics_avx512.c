/* Ranges and histograms, AVX-512. */
#include "qk_isa.h"

#if QK_X86
#include <immintrin.h>
#include <math.h>

#include "qk_kernels.h"

#define TARGET __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,popcnt")))
#define INLINE static inline __attribute__((always_inline)) TARGET

#define NOT_FINITE 0x99 /* VFPCLASS: quiet NaN, +inf, -inf, signalling NaN */

INLINE __mmask16 first16(int64_t n) { return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1); }
INLINE __mmask8 first8(int64_t n) { return n >= 8 ? 0xff : (__mmask8)((1u << n) - 1); }

TARGET void qk_widen_f16_f32_avx512(const void *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 m = first16(n - i);
        _mm512_mask_storeu_ps(y + i, m, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, (const uint16_t *)x + i)));
    }
}

TARGET void qk_widen_bf16_f32_avx512(const void *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 m = first16(n - i);
        const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, (const uint16_t *)x + i));
        _mm512_mask_storeu_epi32(y + i, m, _mm512_slli_epi32(wide, 16));
    }
}

INLINE int64_t popcount(uint64_t bits) { return __builtin_popcountll(bits); }

TARGET void qk_range_f32_avx512(const void *x, int64_t n, qk_range *r) {
    const float *in = x;
    __m512 lo[4], hi[4];
    for (int k = 0; k < 4; k++) lo[k] = _mm512_set1_ps(INFINITY), hi[k] = _mm512_set1_ps(-INFINITY);
    int64_t i = 0, bad = 0;
    for (; i + 64 <= n; i += 64) {
        const __m512 a = _mm512_loadu_ps(in + i), b = _mm512_loadu_ps(in + i + 16);
        const __m512 c = _mm512_loadu_ps(in + i + 32), d = _mm512_loadu_ps(in + i + 48);
        const __mmask16 ma = _mm512_fpclass_ps_mask(a, NOT_FINITE), mb = _mm512_fpclass_ps_mask(b, NOT_FINITE);
        const __mmask16 mc = _mm512_fpclass_ps_mask(c, NOT_FINITE), md = _mm512_fpclass_ps_mask(d, NOT_FINITE);
        if (__builtin_expect(ma | mb | mc | md, 0)) {
            bad += popcount(ma) + popcount(mb) + popcount(mc) + popcount(md);
            lo[0] = _mm512_mask_min_ps(lo[0], (__mmask16)~ma, lo[0], a);
            lo[1] = _mm512_mask_min_ps(lo[1], (__mmask16)~mb, lo[1], b);
            lo[2] = _mm512_mask_min_ps(lo[2], (__mmask16)~mc, lo[2], c);
            lo[3] = _mm512_mask_min_ps(lo[3], (__mmask16)~md, lo[3], d);
            hi[0] = _mm512_mask_max_ps(hi[0], (__mmask16)~ma, hi[0], a);
            hi[1] = _mm512_mask_max_ps(hi[1], (__mmask16)~mb, hi[1], b);
            hi[2] = _mm512_mask_max_ps(hi[2], (__mmask16)~mc, hi[2], c);
            hi[3] = _mm512_mask_max_ps(hi[3], (__mmask16)~md, hi[3], d);
            continue;
        }
        lo[0] = _mm512_min_ps(lo[0], a), lo[1] = _mm512_min_ps(lo[1], b);
        lo[2] = _mm512_min_ps(lo[2], c), lo[3] = _mm512_min_ps(lo[3], d);
        hi[0] = _mm512_max_ps(hi[0], a), hi[1] = _mm512_max_ps(hi[1], b);
        hi[2] = _mm512_max_ps(hi[2], c), hi[3] = _mm512_max_ps(hi[3], d);
    }
    for (; i < n; i += 16) {
        const __mmask16 m = first16(n - i);
        const __m512 v = _mm512_maskz_loadu_ps(m, in + i);
        const __mmask16 wrong = _mm512_fpclass_ps_mask(v, NOT_FINITE), ok = m & (__mmask16)~wrong;
        bad += popcount(wrong);
        lo[0] = _mm512_mask_min_ps(lo[0], ok, lo[0], v);
        hi[0] = _mm512_mask_max_ps(hi[0], ok, hi[0], v);
    }
    const __m512 low = _mm512_min_ps(_mm512_min_ps(lo[0], lo[1]), _mm512_min_ps(lo[2], lo[3]));
    const __m512 high = _mm512_max_ps(_mm512_max_ps(hi[0], hi[1]), _mm512_max_ps(hi[2], hi[3]));
    const double l = _mm512_reduce_min_ps(low), h = _mm512_reduce_max_ps(high);
    r->lo = l < r->lo ? l : r->lo;
    r->hi = h > r->hi ? h : r->hi;
    r->nonfinite += bad;
}

TARGET void qk_range_f64_avx512(const void *x, int64_t n, qk_range *r) {
    __m512d lo = _mm512_set1_pd(INFINITY), hi = _mm512_set1_pd(-INFINITY);
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i += 8) {
        const __mmask8 m = first8(n - i);
        const __m512d v = _mm512_maskz_loadu_pd(m, (const double *)x + i);
        const __mmask8 wrong = _mm512_fpclass_pd_mask(v, NOT_FINITE), ok = m & (__mmask8)~wrong;
        bad += popcount(wrong);
        lo = _mm512_mask_min_pd(lo, ok, lo, v);
        hi = _mm512_mask_max_pd(hi, ok, hi, v);
    }
    const double l = _mm512_reduce_min_pd(lo), h = _mm512_reduce_max_pd(hi);
    r->lo = l < r->lo ? l : r->lo;
    r->hi = h > r->hi ? h : r->hi;
    r->nonfinite += bad;
}

TARGET int64_t qk_range_columns_f32_avx512(const float *x, int64_t n, float *lo, float *hi) {
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 m = first16(n - i);
        const __m512 v = _mm512_maskz_loadu_ps(m, x + i);
        const __mmask16 wrong = _mm512_fpclass_ps_mask(v, NOT_FINITE), ok = m & (__mmask16)~wrong;
        bad += popcount(wrong);
        const __m512 l = _mm512_maskz_loadu_ps(m, lo + i), h = _mm512_maskz_loadu_ps(m, hi + i);
        _mm512_mask_storeu_ps(lo + i, ok, _mm512_min_ps(l, v));
        _mm512_mask_storeu_ps(hi + i, ok, _mm512_max_ps(h, v));
    }
    return bad;
}

TARGET void qk_histogram_f32_avx512(const float *x, int64_t n, float lo, float per_unit, int32_t bins,
                                    uint32_t *tables) {
    const __m512 low = _mm512_set1_ps(lo), rate = _mm512_set1_ps(per_unit), last = _mm512_set1_ps((float)(bins - 1));
    const __m512i step = _mm512_set1_epi32(bins), lane = _mm512_set_epi32(3, 2, 1, 0, 3, 2, 1, 0, 3, 2, 1, 0, 3, 2, 1, 0);
    const __m512i table = _mm512_mullo_epi32(lane, step);
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 m = first16(n - i);
        const __m512 v = _mm512_maskz_loadu_ps(m, x + i);
        uint32_t ok = m & (__mmask16)~_mm512_fpclass_ps_mask(v, NOT_FINITE);
        __m512 t = _mm512_mul_ps(_mm512_sub_ps(v, low), rate);
        t = _mm512_min_ps(_mm512_max_ps(t, _mm512_setzero_ps()), last);
        int32_t at[16];
        _mm512_storeu_si512(at, _mm512_add_epi32(_mm512_cvttps_epi32(t), table));
        if (__builtin_expect(ok == 0xffff, 1)) {
            for (int k = 0; k < 16; k++) tables[at[k]]++;
        } else {
            for (; ok; ok &= ok - 1) tables[at[__builtin_ctz(ok)]]++;
        }
    }
}
#endif
