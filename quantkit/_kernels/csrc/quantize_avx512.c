/* quantize, AVX-512: 64 codes a step. */
#include "qk_isa.h"

#if QK_X86
#include <immintrin.h>

#include "qk_kernels.h"

#define TARGET __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")))
#define INLINE static inline __attribute__((always_inline)) TARGET

enum source { F16, BF16, F32, F64 };
enum mode { RECIPROCAL, DIVIDE, DIVIDE_FLOAT_ZP };

/* What does not change along a run. In vector mode scale and zero point are loaded beside the values. */
struct constants {
    __m512 scale, reciprocal, far_x, zero_point_f;
    __m512i zero_point16;
    int32_t zero_point;
};

INLINE __m512 load16(enum source source, const void *x, int64_t i, __mmask16 m) {
    if (source == F32) return _mm512_maskz_loadu_ps(m, (const float *)x + i);
    const __m256i h = _mm256_maskz_loadu_epi16(m, (const uint16_t *)x + i);
    if (source == F16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* min and max keep their second operand where one is NaN. A NaN that reaches the conversion becomes INT32_MIN, which
 * saturates to the lowest code, so NaN must survive min; values below every code may become INT32_MIN as well. */
INLINE __m512i codes16_f32(__m512 x, enum mode mode, const struct constants *c) {
    const __m512 far = _mm512_set1_ps(QK_FAR);
    if (mode == RECIPROCAL) {
        /* One Newton step on the quotient makes it exact; x is clamped first, so that inf cannot meet itself. */
        x = _mm512_min_ps(c->far_x, x);
        const __m512 t = _mm512_mul_ps(x, c->reciprocal);
        return _mm512_cvtps_epi32(_mm512_fmadd_ps(_mm512_fnmadd_ps(t, c->scale, x), c->reciprocal, t));
    }
    __m512 t = _mm512_div_ps(x, c->scale);
    if (mode == DIVIDE_FLOAT_ZP) t = _mm512_add_ps(t, c->zero_point_f);
    return _mm512_cvtps_epi32(_mm512_min_ps(far, t));
}

INLINE __m256i codes8_f64(__m512d x, __m512d scale, __m512d zero_point_f, enum mode mode) {
    __m512d t = _mm512_div_pd(x, scale);
    if (mode == DIVIDE_FLOAT_ZP) t = _mm512_add_pd(t, zero_point_f);
    return _mm512_cvtpd_epi32(_mm512_min_pd(_mm512_set1_pd(QK_FAR), t));
}

INLINE __m512i join(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }

/* 16 codes before saturation; with vector parameters their zero points are added here, else by the caller. */
INLINE __m512i codes16(enum source source, const void *x, int64_t i, __mmask16 m, enum mode mode, int vector,
                       const struct constants *c, const qk_affine *p) {
    __m512i q;
    __m512 scale = c->scale, zero_point_f = c->zero_point_f;
    if (vector) {
        scale = _mm512_mask_loadu_ps(_mm512_set1_ps(1.0f), m, p->scale + i);
        if (mode == DIVIDE_FLOAT_ZP) zero_point_f = _mm512_maskz_loadu_ps(m, p->zero_point_f + i);
    }
    if (source == F64) {
        const double *d = (const double *)x + i;
        const __m512d low = _mm512_maskz_loadu_pd((__mmask8)m, d);
        const __m512d high = _mm512_maskz_loadu_pd((__mmask8)(m >> 8), d + 8);
        const __m256i q0 = codes8_f64(low, _mm512_cvtps_pd(_mm512_castps512_ps256(scale)),
                                      _mm512_cvtps_pd(_mm512_castps512_ps256(zero_point_f)), mode);
        const __m256i q1 = codes8_f64(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(scale, 1)),
                                      _mm512_cvtps_pd(_mm512_extractf32x8_ps(zero_point_f, 1)), mode);
        q = join(q0, q1);
    } else if (vector) {
        const struct constants own = {.scale = scale, .zero_point_f = zero_point_f};
        q = codes16_f32(load16(source, x, i, m), mode, &own);
    } else {
        q = codes16_f32(load16(source, x, i, m), mode, c);
    }
    if (vector && mode != DIVIDE_FLOAT_ZP) {
        /* INT32_MIN plus a negative zero point would wrap: stop it short. */
        q = _mm512_max_epi32(q, _mm512_set1_epi32(-4096));
        q = _mm512_add_epi32(q, _mm512_maskz_loadu_epi32(m, p->zero_point + i));
    }
    return q;
}

/* The packs work within 128-bit lanes: afterwards lane j holds the j-th quarter of each of the four vectors. */
INLINE __m512i pack64(__m512i a, __m512i b, __m512i c, __m512i d, __m512i zero_point16, int is_signed) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i ab = _mm512_adds_epi16(_mm512_packs_epi32(a, b), zero_point16);
    const __m512i cd = _mm512_adds_epi16(_mm512_packs_epi32(c, d), zero_point16);
    return _mm512_permutexvar_epi32(order, is_signed ? _mm512_packs_epi16(ab, cd) : _mm512_packus_epi16(ab, cd));
}

INLINE __m512i codes64(enum source source, const void *x, int64_t i, __mmask64 m, enum mode mode, int vector,
                       int is_signed, const struct constants *c, const qk_affine *p) {
    const __m512i a = codes16(source, x, i, (__mmask16)m, mode, vector, c, p);
    const __m512i b = codes16(source, x, i + 16, (__mmask16)(m >> 16), mode, vector, c, p);
    const __m512i d = codes16(source, x, i + 32, (__mmask16)(m >> 32), mode, vector, c, p);
    const __m512i e = codes16(source, x, i + 48, (__mmask16)(m >> 48), mode, vector, c, p);
    return pack64(a, b, d, e, c->zero_point16, is_signed);
}

INLINE void run(enum source source, const void *x, void *y, int64_t n, enum mode mode, int vector, int is_signed,
                const struct constants *c, const qk_affine *p) {
    char *out = y;
    int64_t i = 0;
    if (p->stream && n >= 256) {
        const int64_t head = -(intptr_t)out & 63;
        const __mmask64 m = ((__mmask64)1 << head) - 1;
        _mm512_mask_storeu_epi8(out, m, codes64(source, x, 0, m, mode, vector, is_signed, c, p));
        for (i = head; i + 64 <= n; i += 64)
            _mm512_stream_si512((void *)(out + i), codes64(source, x, i, ~0ull, mode, vector, is_signed, c, p));
        _mm_sfence();
    } else {
        for (; i + 64 <= n; i += 64)
            _mm512_storeu_si512(out + i, codes64(source, x, i, ~0ull, mode, vector, is_signed, c, p));
    }
    if (i < n) {
        const __mmask64 m = ~0ull >> (64 - (n - i));
        _mm512_mask_storeu_epi8(out + i, m, codes64(source, x, i, m, mode, vector, is_signed, c, p));
    }
}

INLINE void quantize(enum source source, int is_signed, const void *x, void *y, int64_t n, const qk_affine *p) {
    struct constants c = {.zero_point16 = _mm512_setzero_si512()};
    if (p->vector) {
        c.scale = c.zero_point_f = _mm512_setzero_ps();
        if (p->zero_point_f)
            run(source, x, y, n, DIVIDE_FLOAT_ZP, 1, is_signed, &c, p);
        else
            run(source, x, y, n, DIVIDE, 1, is_signed, &c, p);
        return;
    }
    const float scale = p->scale[0];
    c.scale = _mm512_set1_ps(scale);
    c.zero_point_f = _mm512_set1_ps(p->zero_point_f ? p->zero_point_f[0] : 0.0f);
    if (p->zero_point_f) {
        run(source, x, y, n, DIVIDE_FLOAT_ZP, 0, is_signed, &c, p);
        return;
    }
    c.zero_point16 = _mm512_set1_epi16((int16_t)p->zero_point[0]);
    if (source == F64 || scale < QK_RECIPROCAL_MIN || scale > QK_RECIPROCAL_MAX) {
        run(source, x, y, n, DIVIDE, 0, is_signed, &c, p);
        return;
    }
    c.reciprocal = _mm512_set1_ps(1.0f / scale);
    c.far_x = _mm512_set1_ps(QK_FAR * scale);
    run(source, x, y, n, RECIPROCAL, 0, is_signed, &c, p);
}

#define SLOT(src, SRC, dst, is_signed)                                                            \
    TARGET void qk_quantize_##src##_##dst##_avx512(const void *x, void *y, int64_t n, const qk_affine *p) { \
        quantize(SRC, is_signed, x, y, n, p);                                                     \
    }
#define SLOTS(src, SRC) SLOT(src, SRC, u8, 0) SLOT(src, SRC, s8, 1)
SLOTS(f16, F16)
SLOTS(bf16, BF16)
SLOTS(f32, F32)
SLOTS(f64, F64)
#endif
