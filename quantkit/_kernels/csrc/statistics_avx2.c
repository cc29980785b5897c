/* Ranges and histograms, AVX2. */
#include "qk_isa.h"

#if QK_X86
#include <immintrin.h>
#include <math.h>

#include "qk_kernels.h"

#define TARGET __attribute__((target("avx2,fma,f16c,popcnt")))
#define INLINE static inline __attribute__((always_inline)) TARGET

/* What a tail of fewer than one vector leaves to the portable kernel. */
TARGET void qk_widen_f16_f32_avx2(const void *x, float *y, int64_t n) {
    const uint16_t *in = x;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(in + i))));
    qk_widen_f16_f32_scalar(in + i, y + i, n - i);
}

TARGET void qk_widen_bf16_f32_avx2(const void *x, float *y, int64_t n) {
    const uint16_t *in = x;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(in + i)));
        _mm256_storeu_si256((__m256i *)(y + i), _mm256_slli_epi32(wide, 16));
    }
    qk_widen_bf16_f32_scalar(in + i, y + i, n - i);
}

/* All bits set where v is finite: the difference is NaN for inf and NaN. */
INLINE __m256 finite8(__m256 v) { return _mm256_cmp_ps(_mm256_sub_ps(v, v), _mm256_setzero_ps(), _CMP_EQ_OQ); }
INLINE __m256d finite4(__m256d v) { return _mm256_cmp_pd(_mm256_sub_pd(v, v), _mm256_setzero_pd(), _CMP_EQ_OQ); }

TARGET void qk_range_f32_avx2(const void *x, int64_t n, qk_range *r) {
    const float *in = x;
    const __m256 inf = _mm256_set1_ps(INFINITY), minus_inf = _mm256_set1_ps(-INFINITY);
    __m256 lo[4] = {inf, inf, inf, inf}, hi[4] = {minus_inf, minus_inf, minus_inf, minus_inf};
    int64_t i = 0, finite = 0;
    for (; i + 32 <= n; i += 32)
        for (int k = 0; k < 4; k++) {
            const __m256 v = _mm256_loadu_ps(in + i + 8 * k), ok = finite8(v);
            finite += __builtin_popcount((unsigned)_mm256_movemask_ps(ok));
            lo[k] = _mm256_min_ps(lo[k], _mm256_blendv_ps(inf, v, ok));
            hi[k] = _mm256_max_ps(hi[k], _mm256_blendv_ps(minus_inf, v, ok));
        }
    float lows[8], highs[8];
    _mm256_storeu_ps(lows, _mm256_min_ps(_mm256_min_ps(lo[0], lo[1]), _mm256_min_ps(lo[2], lo[3])));
    _mm256_storeu_ps(highs, _mm256_max_ps(_mm256_max_ps(hi[0], hi[1]), _mm256_max_ps(hi[2], hi[3])));
    for (int k = 0; k < 8; k++) {
        r->lo = lows[k] < r->lo ? lows[k] : r->lo;
        r->hi = highs[k] > r->hi ? highs[k] : r->hi;
    }
    r->nonfinite += i - finite;
    qk_range_f32_scalar(in + i, n - i, r);
}

TARGET void qk_range_f64_avx2(const void *x, int64_t n, qk_range *r) {
    const double *in = x;
    const __m256d inf = _mm256_set1_pd(INFINITY), minus_inf = _mm256_set1_pd(-INFINITY);
    __m256d lo = inf, hi = minus_inf;
    int64_t i = 0, finite = 0;
    for (; i + 4 <= n; i += 4) {
        const __m256d v = _mm256_loadu_pd(in + i), ok = finite4(v);
        finite += __builtin_popcount((unsigned)_mm256_movemask_pd(ok));
        lo = _mm256_min_pd(lo, _mm256_blendv_pd(inf, v, ok));
        hi = _mm256_max_pd(hi, _mm256_blendv_pd(minus_inf, v, ok));
    }
    double lows[4], highs[4];
    _mm256_storeu_pd(lows, lo);
    _mm256_storeu_pd(highs, hi);
    for (int k = 0; k < 4; k++) {
        r->lo = lows[k] < r->lo ? lows[k] : r->lo;
        r->hi = highs[k] > r->hi ? highs[k] : r->hi;
    }
    r->nonfinite += i - finite;
    qk_range_f64_scalar(in + i, n - i, r);
}

TARGET int64_t qk_range_columns_f32_avx2(const float *x, int64_t n, float *lo, float *hi) {
    const __m256 inf = _mm256_set1_ps(INFINITY), minus_inf = _mm256_set1_ps(-INFINITY);
    int64_t i = 0, finite = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i), ok = finite8(v);
        finite += __builtin_popcount((unsigned)_mm256_movemask_ps(ok));
        _mm256_storeu_ps(lo + i, _mm256_min_ps(_mm256_loadu_ps(lo + i), _mm256_blendv_ps(inf, v, ok)));
        _mm256_storeu_ps(hi + i, _mm256_max_ps(_mm256_loadu_ps(hi + i), _mm256_blendv_ps(minus_inf, v, ok)));
    }
    return i - finite + qk_range_columns_f32_scalar(x + i, n - i, lo + i, hi + i);
}

TARGET void qk_histogram_f32_avx2(const float *x, int64_t n, float lo, float per_unit, int32_t bins,
                                  uint32_t *tables) {
    const __m256 low = _mm256_set1_ps(lo), rate = _mm256_set1_ps(per_unit), last = _mm256_set1_ps((float)(bins - 1));
    const __m256i lane = _mm256_set_epi32(3, 2, 1, 0, 3, 2, 1, 0);
    const __m256i table = _mm256_mullo_epi32(lane, _mm256_set1_epi32(bins));
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        unsigned ok = (unsigned)_mm256_movemask_ps(finite8(v));
        __m256 t = _mm256_mul_ps(_mm256_sub_ps(v, low), rate);
        t = _mm256_min_ps(_mm256_max_ps(t, _mm256_setzero_ps()), last);
        int32_t at[8];
        _mm256_storeu_si256((__m256i *)at, _mm256_add_epi32(_mm256_cvttps_epi32(t), table));
        if (__builtin_expect(ok == 0xff, 1)) {
            for (int k = 0; k < 8; k++) tables[at[k]]++;
        } else {
            for (; ok; ok &= ok - 1) tables[at[__builtin_ctz(ok)]]++;
        }
    }
    qk_histogram_f32_scalar(x + i, n - i, lo, per_unit, bins, tables);
}
#endif
