/* quantize, AVX2: 32 codes a step. */
#include "qk_isa.h"

#if QK_X86
#include <immintrin.h>
#include <string.h>

#include "qk_kernels.h"

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) TARGET

enum source { F16, BF16, F32, F64 };
enum mode { RECIPROCAL, DIVIDE, DIVIDE_FLOAT_ZP };

struct constants {
    __m256 scale, reciprocal, far_x, zero_point_f;
    __m256i zero_point16;
};

INLINE __m256 load8(enum source source, const void *x, int64_t i) {
    if (source == F32) return _mm256_loadu_ps((const float *)x + i);
    const __m128i h = _mm_loadu_si128((const __m128i *)((const uint16_t *)x + i));
    if (source == F16) return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* See quantize_avx512.c for why NaN must survive min, and for the reciprocal. */
INLINE __m256i codes8_f32(__m256 x, enum mode mode, const struct constants *c) {
    if (mode == RECIPROCAL) {
        x = _mm256_min_ps(c->far_x, x);
        const __m256 t = _mm256_mul_ps(x, c->reciprocal);
        return _mm256_cvtps_epi32(_mm256_fmadd_ps(_mm256_fnmadd_ps(t, c->scale, x), c->reciprocal, t));
    }
    __m256 t = _mm256_div_ps(x, c->scale);
    if (mode == DIVIDE_FLOAT_ZP) t = _mm256_add_ps(t, c->zero_point_f);
    return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_set1_ps(QK_FAR), t));
}

INLINE __m128i codes4_f64(__m256d x, __m256d scale, __m256d zero_point_f, enum mode mode) {
    __m256d t = _mm256_div_pd(x, scale);
    if (mode == DIVIDE_FLOAT_ZP) t = _mm256_add_pd(t, zero_point_f);
    return _mm256_cvtpd_epi32(_mm256_min_pd(_mm256_set1_pd(QK_FAR), t));
}

INLINE __m256d low_f64(__m256 v) { return _mm256_cvtps_pd(_mm256_castps256_ps128(v)); }
INLINE __m256d high_f64(__m256 v) { return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)); }

INLINE __m256i codes8(enum source source, const void *x, int64_t i, enum mode mode, int vector,
                      const struct constants *uniform, const qk_affine *p) {
    struct constants c = *uniform;
    if (vector) {
        c.scale = _mm256_loadu_ps(p->scale + i);
        if (mode == DIVIDE_FLOAT_ZP) c.zero_point_f = _mm256_loadu_ps(p->zero_point_f + i);
    }
    __m256i q;
    if (source == F64) {
        const double *d = (const double *)x + i;
        q = _mm256_set_m128i(
            codes4_f64(_mm256_loadu_pd(d + 4), high_f64(c.scale), high_f64(c.zero_point_f), mode),
            codes4_f64(_mm256_loadu_pd(d), low_f64(c.scale), low_f64(c.zero_point_f), mode));
    } else {
        q = codes8_f32(load8(source, x, i), mode, &c);
    }
    if (vector && mode != DIVIDE_FLOAT_ZP) {
        /* INT32_MIN plus a negative zero point would wrap: stop it short. */
        q = _mm256_max_epi32(q, _mm256_set1_epi32(-4096));
        q = _mm256_add_epi32(q, _mm256_loadu_si256((const __m256i *)(p->zero_point + i)));
    }
    return q;
}

INLINE __m256i codes32(enum source source, const void *x, int64_t i, enum mode mode, int vector, int is_signed,
                       const struct constants *k, const qk_affine *p) {
    const __m256i a = codes8(source, x, i, mode, vector, k, p), b = codes8(source, x, i + 8, mode, vector, k, p);
    const __m256i c = codes8(source, x, i + 16, mode, vector, k, p), d = codes8(source, x, i + 24, mode, vector, k, p);
    const __m256i ab = _mm256_adds_epi16(_mm256_packs_epi32(a, b), k->zero_point16);
    const __m256i cd = _mm256_adds_epi16(_mm256_packs_epi32(c, d), k->zero_point16);
    const __m256i packed = is_signed ? _mm256_packs_epi16(ab, cd) : _mm256_packus_epi16(ab, cd);
    return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Fewer than 32 codes: through buffers on the stack, so that nothing outside the arrays is touched. */
INLINE void part(enum source source, const void *x, char *y, int64_t i, int64_t n, enum mode mode, int vector,
                 int is_signed, const struct constants *k, const qk_affine *p) {
    static const int8_t sizes[] = {2, 2, 4, 8};
    double values[32] = {0};
    float scales[32], zero_points_f[32];
    int32_t zero_points[32] = {0};
    char codes[32];
    qk_affine own = {.scale = scales, .zero_point = zero_points, .zero_point_f = zero_points_f};
    if (vector) {
        for (int j = 0; j < 32; j++) scales[j] = 1.0f, zero_points_f[j] = 0.0f;
        memcpy(scales, p->scale + i, (size_t)n * 4);
        if (mode == DIVIDE_FLOAT_ZP)
            memcpy(zero_points_f, p->zero_point_f + i, (size_t)n * 4);
        else
            memcpy(zero_points, p->zero_point + i, (size_t)n * 4);
    }
    memcpy(values, (const char *)x + i * sizes[source], (size_t)(n * sizes[source]));
    _mm256_storeu_si256((__m256i *)codes, codes32(source, values, 0, mode, vector, is_signed, k, &own));
    memcpy(y + i, codes, (size_t)n);
}

INLINE void run(enum source source, const void *x, void *y, int64_t n, enum mode mode, int vector, int is_signed,
                const struct constants *k, const qk_affine *p) {
    char *out = y;
    int64_t i = 0;
    if (p->stream && n >= 256) {
        i = -(intptr_t)out & 31;
        if (i) part(source, x, out, 0, i, mode, vector, is_signed, k, p);
        for (; i + 32 <= n; i += 32)
            _mm256_stream_si256((__m256i *)(out + i), codes32(source, x, i, mode, vector, is_signed, k, p));
        _mm_sfence();
    } else {
        for (; i + 32 <= n; i += 32)
            _mm256_storeu_si256((__m256i *)(out + i), codes32(source, x, i, mode, vector, is_signed, k, p));
    }
    if (i < n) part(source, x, out, i, n - i, mode, vector, is_signed, k, p);
}

INLINE void quantize(enum source source, int is_signed, const void *x, void *y, int64_t n, const qk_affine *p) {
    struct constants c = {.zero_point16 = _mm256_setzero_si256()};
    if (p->vector) {
        c.scale = c.zero_point_f = _mm256_setzero_ps();
        if (p->zero_point_f)
            run(source, x, y, n, DIVIDE_FLOAT_ZP, 1, is_signed, &c, p);
        else
            run(source, x, y, n, DIVIDE, 1, is_signed, &c, p);
        return;
    }
    const float scale = p->scale[0];
    c.scale = _mm256_set1_ps(scale);
    c.zero_point_f = _mm256_set1_ps(p->zero_point_f ? p->zero_point_f[0] : 0.0f);
    if (p->zero_point_f) {
        run(source, x, y, n, DIVIDE_FLOAT_ZP, 0, is_signed, &c, p);
        return;
    }
    c.zero_point16 = _mm256_set1_epi16((int16_t)p->zero_point[0]);
    if (source == F64 || scale < QK_RECIPROCAL_MIN || scale > QK_RECIPROCAL_MAX) {
        run(source, x, y, n, DIVIDE, 0, is_signed, &c, p);
        return;
    }
    c.reciprocal = _mm256_set1_ps(1.0f / scale);
    c.far_x = _mm256_set1_ps(QK_FAR * scale);
    run(source, x, y, n, RECIPROCAL, 0, is_signed, &c, p);
}

#define SLOT(src, SRC, dst, is_signed)                                                            \
    TARGET void qk_quantize_##src##_##dst##_avx2(const void *x, void *y, int64_t n, const qk_affine *p) { \
        quantize(SRC, is_signed, x, y, n, p);                                                     \
    }
#define SLOTS(src, SRC) SLOT(src, SRC, u8, 0) SLOT(src, SRC, s8, 1)
SLOTS(f16, F16)
SLOTS(bf16, BF16)
SLOTS(f32, F32)
SLOTS(f64, F64)
#endif
