/* dequantize, AVX2: 8 values a step, unrolled. */
#include "qk_isa.h"

#if QK_X86
#include <immintrin.h>
#include <string.h>

#include "qk_kernels.h"

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) TARGET

enum source { U8, S8, I32 };
enum sink { F16, BF16, F32, F64 };

INLINE __m256i load8(enum source source, const void *x, int64_t i) {
    if (source == I32) return _mm256_loadu_si256((const __m256i *)((const int32_t *)x + i));
    const __m128i codes = _mm_loadl_epi64((const __m128i *)((const char *)x + i));
    return source == U8 ? _mm256_cvtepu8_epi32(codes) : _mm256_cvtepi8_epi32(codes);
}

/* Round half even to the upper 16 bits; products of finite numbers are never NaN. */
INLINE __m128i to_bf16(__m256 v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(up), _mm256_extracti128_si256(up, 1));
}

/* `stream` needs 32-byte (16-bit outputs: 16-byte) alignment. */
INLINE void store8(enum sink sink, void *y, int64_t i, __m256 v, int stream) {
    if (sink == F32) {
        float *out = (float *)y + i;
        if (stream) _mm256_stream_ps(out, v);
        else _mm256_storeu_ps(out, v);
        return;
    }
    const __m128i h = sink == F16 ? _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC) : to_bf16(v);
    __m128i *out = (__m128i *)((uint16_t *)y + i);
    if (stream) _mm_stream_si128(out, h);
    else _mm_storeu_si128(out, h);
}

INLINE void store4_f64(void *y, int64_t i, __m256d v, int stream) {
    double *out = (double *)y + i;
    if (stream) _mm256_stream_pd(out, v);
    else _mm256_storeu_pd(out, v);
}

INLINE void step(enum source source, enum sink sink, const void *x, void *y, int64_t i, int vector, int float_zp,
                 __m256 scale, __m256i zero_point, __m256 zero_point_f, const qk_affine *p, int stream) {
    __m256i q = load8(source, x, i);
    if (vector) {
        scale = _mm256_loadu_ps(p->scale + i);
        if (float_zp) zero_point_f = _mm256_loadu_ps(p->zero_point_f + i);
        else zero_point = _mm256_loadu_si256((const __m256i *)(p->zero_point + i));
    }
    if (!float_zp) q = _mm256_sub_epi32(q, zero_point);
    if (sink == F64) {
        __m256d low = _mm256_cvtepi32_pd(_mm256_castsi256_si128(q));
        __m256d high = _mm256_cvtepi32_pd(_mm256_extracti128_si256(q, 1));
        if (float_zp) {
            low = _mm256_sub_pd(low, _mm256_cvtps_pd(_mm256_castps256_ps128(zero_point_f)));
            high = _mm256_sub_pd(high, _mm256_cvtps_pd(_mm256_extractf128_ps(zero_point_f, 1)));
        }
        store4_f64(y, i, _mm256_mul_pd(low, _mm256_cvtps_pd(_mm256_castps256_ps128(scale))), stream);
        store4_f64(y, i + 4, _mm256_mul_pd(high, _mm256_cvtps_pd(_mm256_extractf128_ps(scale, 1))), stream);
        return;
    }
    __m256 v = _mm256_cvtepi32_ps(q);
    if (float_zp) v = _mm256_sub_ps(v, zero_point_f);
    store8(sink, y, i, _mm256_mul_ps(v, scale), stream);
}

/* The unaligned head and the tail: through buffers on the stack, so that nothing outside the arrays is touched. */
INLINE void part(enum source source, enum sink sink, const void *x, void *y, int64_t i, int64_t end, int vector,
                 int float_zp, __m256 scale, __m256i zero_point, __m256 zero_point_f, const qk_affine *p) {
    static const int8_t source_sizes[] = {1, 1, 4}, sink_sizes[] = {2, 2, 4, 8};
    while (i < end) {
        const int64_t now = end - i < 8 ? end - i : 8;
        int32_t codes[8] = {0}, zero_points[8] = {0};
        float scales[8] = {0}, zero_points_f[8] = {0};
        double values[8];
        const qk_affine own = {.scale = scales, .zero_point = zero_points, .zero_point_f = zero_points_f};
        memcpy(codes, (const char *)x + i * source_sizes[source], (size_t)(now * source_sizes[source]));
        if (vector) {
            memcpy(scales, p->scale + i, (size_t)now * 4);
            if (float_zp) memcpy(zero_points_f, p->zero_point_f + i, (size_t)now * 4);
            else memcpy(zero_points, p->zero_point + i, (size_t)now * 4);
        }
        step(source, sink, codes, values, 0, vector, float_zp, scale, zero_point, zero_point_f, &own, 0);
        memcpy((char *)y + i * sink_sizes[sink], values, (size_t)(now * sink_sizes[sink]));
        i += now;
    }
}

INLINE void run(enum source source, enum sink sink, const void *x, void *y, int64_t n, int vector, int float_zp,
                const qk_affine *p) {
    static const int8_t sizes[] = {2, 2, 4, 8};
    const __m256 scale = _mm256_set1_ps(p->scale[0]);
    const __m256 zero_point_f = _mm256_set1_ps(float_zp ? p->zero_point_f[0] : 0.0f);
    const __m256i zero_point = _mm256_set1_epi32(float_zp ? 0 : p->zero_point[0]);
    int64_t i = 0;
#define STEP(i, stream) step(source, sink, x, y, i, vector, float_zp, scale, zero_point, zero_point_f, p, stream)
    if (p->stream && n >= 256 && (intptr_t)y % sizes[sink] == 0) {
        i = (-(intptr_t)y & 31) / sizes[sink];
        part(source, sink, x, y, 0, i, vector, float_zp, scale, zero_point, zero_point_f, p);
        for (; i + 32 <= n; i += 32) {
            STEP(i, 1);
            STEP(i + 8, 1);
            STEP(i + 16, 1);
            STEP(i + 24, 1);
        }
        _mm_sfence();
    } else {
        for (; i + 32 <= n; i += 32) {
            STEP(i, 0);
            STEP(i + 8, 0);
            STEP(i + 16, 0);
            STEP(i + 24, 0);
        }
    }
    for (; i + 8 <= n; i += 8) STEP(i, 0);
    part(source, sink, x, y, i, n, vector, float_zp, scale, zero_point, zero_point_f, p);
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
    TARGET void qk_dequantize_##src##_##dst##_avx2(const void *x, void *y, int64_t n, const qk_affine *p) { \
        dequantize(SRC, DST, x, y, n, p);                                                         \
    }
#define SLOTS(src, SRC)                                                                           \
    SLOT(src, SRC, f16, F16) SLOT(src, SRC, bf16, BF16) SLOT(src, SRC, f32, F32) SLOT(src, SRC, f64, F64)
SLOTS(u8, U8)
SLOTS(s8, S8)
SLOTS(i32, I32)
#endif
