/* dequantize, AVX-512: bound by the stores, four 64-byte ones a step. */
#include "qk_isa.h"

#if QK_X86
#include <immintrin.h>

#include "qk_kernels.h"

#define TARGET __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")))
#define INLINE static inline __attribute__((always_inline)) TARGET

enum source { U8, S8, I32 };
enum sink { F16, BF16, F32, F64 };

INLINE __m512i load16(enum source source, const void *x, int64_t i, __mmask16 m) {
    if (source == I32) return _mm512_maskz_loadu_epi32(m, (const int32_t *)x + i);
    const __m128i codes = _mm_maskz_loadu_epi8(m, (const char *)x + i);
    return source == U8 ? _mm512_cvtepu8_epi32(codes) : _mm512_cvtepi8_epi32(codes);
}

/* Round half even to the upper 16 bits; products of finite numbers are never NaN. */
INLINE __m256i to_bf16(__m512 v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
}

/* The store type of a step of 16 values; `stream` needs 64-byte (16-bit outputs: 32-byte) alignment and a full mask. */
INLINE void store16(enum sink sink, void *y, int64_t i, __mmask16 m, __m512 v, int stream) {
    if (sink == F32) {
        float *out = (float *)y + i;
        if (stream) _mm512_stream_ps(out, v);
        else _mm512_mask_storeu_ps(out, m, v);
        return;
    }
    const __m256i h = sink == F16 ? _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC) : to_bf16(v);
    uint16_t *out = (uint16_t *)y + i;
    if (stream) _mm256_stream_si256((__m256i *)out, h);
    else _mm256_mask_storeu_epi16(out, m, h);
}

INLINE void store8_f64(void *y, int64_t i, __mmask8 m, __m512d v, int stream) {
    double *out = (double *)y + i;
    if (stream) _mm512_stream_pd(out, v);
    else _mm512_mask_storeu_pd(out, m, v);
}

INLINE void step(enum source source, enum sink sink, const void *x, void *y, int64_t i, __mmask16 m, int vector,
                 int float_zp, __m512 scale, __m512i zero_point, __m512 zero_point_f, const qk_affine *p, int stream) {
    __m512i q = load16(source, x, i, m);
    if (vector) {
        scale = _mm512_maskz_loadu_ps(m, p->scale + i);
        if (float_zp) zero_point_f = _mm512_maskz_loadu_ps(m, p->zero_point_f + i);
        else zero_point = _mm512_maskz_loadu_epi32(m, p->zero_point + i);
    }
    if (!float_zp) q = _mm512_sub_epi32(q, zero_point);
    if (sink == F64) {
        __m512d low = _mm512_cvtepi32_pd(_mm512_castsi512_si256(q));
        __m512d high = _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(q, 1));
        if (float_zp) {
            low = _mm512_sub_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(zero_point_f)));
            high = _mm512_sub_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(zero_point_f, 1)));
        }
        low = _mm512_mul_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(scale)));
        high = _mm512_mul_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(scale, 1)));
        store8_f64(y, i, (__mmask8)m, low, stream);
        store8_f64(y, i + 8, (__mmask8)(m >> 8), high, stream);
        return;
    }
    __m512 v = _mm512_cvtepi32_ps(q);
    if (float_zp) v = _mm512_sub_ps(v, zero_point_f);
    store16(sink, y, i, m, _mm512_mul_ps(v, scale), stream);
}

INLINE __mmask16 first(int64_t n) { return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1); }

INLINE void run(enum source source, enum sink sink, const void *x, void *y, int64_t n, int vector, int float_zp,
                const qk_affine *p) {
    static const int8_t sizes[] = {2, 2, 4, 8};
    const __m512 scale = _mm512_set1_ps(p->scale[0]);
    const __m512 zero_point_f = _mm512_set1_ps(float_zp ? p->zero_point_f[0] : 0.0f);
    const __m512i zero_point = _mm512_set1_epi32(float_zp ? 0 : p->zero_point[0]);
#define STEP(i, m, stream) \
    step(source, sink, x, y, i, m, vector, float_zp, scale, zero_point, zero_point_f, p, stream)
    int64_t i = 0;
    if (p->stream && n >= 256 && (intptr_t)y % sizes[sink] == 0) {
        const int64_t head = (-(intptr_t)y & 63) / sizes[sink];
        for (; i < head; i += 16) STEP(i, first(head - i), 0);
        i = head;
        for (; i + 64 <= n; i += 64) {
            STEP(i, 0xffff, 1);
            STEP(i + 16, 0xffff, 1);
            STEP(i + 32, 0xffff, 1);
            STEP(i + 48, 0xffff, 1);
        }
        _mm_sfence();
    } else {
        for (; i + 64 <= n; i += 64) {
            STEP(i, 0xffff, 0);
            STEP(i + 16, 0xffff, 0);
            STEP(i + 32, 0xffff, 0);
            STEP(i + 48, 0xffff, 0);
        }
    }
    for (; i < n; i += 16) STEP(i, first(n - i), 0);
#undef STEP
}

INLINE void dequantize(enum source source, enum sink sink, const void *x, void *y, int64_t n, const qk_affine *p) {
    if (n == 0) return;
    if (p->vector)
        p->zero_point_f ? run(source, sink, x, y, n, 1, 1, p) : run(source, sink, x, y, n, 1, 0, p);
    else
        p->zero_point_f ? run(source, sink, x, y, n, 0, 1, p) : run(source, sink, x, y, n, 0, 0, p);
}

#define SLOT(src, SRC, dst, DST)                                                                  \
    TARGET void qk_dequantize_##src##_##dst##_avx512(const void *x, void *y, int64_t n, const qk_affine *p) { \
        dequantize(SRC, DST, x, y, n, p);                                                         \
    }
#define SLOTS(src, SRC)                                                                           \
    SLOT(src, SRC, f16, F16) SLOT(src, SRC, bf16, BF16) SLOT(src, SRC, f32, F32) SLOT(src, SRC, f64, F64)
SLOTS(u8, U8)
SLOTS(s8, S8)
SLOTS(i32, I32)
#endif
