/* Integer products, 512-bit VNNI, with VBMI or without: one source, included with TARGET and FUNCTION defined, and VBMI
 * where there is. Tiles of 6 rows by 64 columns (8 rows by 32 or fewer); the whole of K, and then the epilogue, in
 * registers. */
#include <immintrin.h>

#include "qk_kernels.h"

#define INLINE static inline __attribute__((always_inline)) TARGET

#ifdef VBMI
#include "qk_lookup_vbmi.h"
#endif

/* The last 1 to 3 bytes of a row, without reading past it. */
INLINE int32_t tail_bytes(const uint8_t *a, int64_t n) {
    uint32_t v = a[0];
    if (n > 1) v |= (uint32_t)a[1] << 8;
    if (n > 2) v |= (uint32_t)a[2] << 16;
    return (int32_t)v;
}

INLINE int32_t four_bytes(const uint8_t *a) {
    int32_t v;
    __builtin_memcpy(&v, a, 4);
    return v;
}

/* The lanes of vector v that are columns. */
INLINE __mmask16 lanes(int columns, int v) {
    const int left = columns - 16 * v;
    return left >= 16 ? 0xffff : left <= 0 ? 0 : (__mmask16)((1u << left) - 1);
}

/* Sums to float32; a bias is added in a step of its own. */
INLINE __m512 real(const qk_epilogue *e, __m512i sum, int v) {
    const __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_loadu_ps(e->scale + 16 * v));
    return e->bias ? _mm512_add_ps(y, _mm512_loadu_ps(e->bias + 16 * v)) : y;
}

/* Codes of one row as they leave, from 4 vectors of integers that lack their zero point (those beyond V are zero). */
typedef struct {
    __m512i zero_point, low, high, order;
} narrowing;

INLINE narrowing narrowing_of(const qk_epilogue *e) {
    return (narrowing){_mm512_set1_epi16((int16_t)e->zero_point), _mm512_set1_epi8((char)e->low),
                       _mm512_set1_epi8((char)e->high),
                       _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)};
}

INLINE __m512i narrowed(const narrowing *p, const __m512i *q, int is_signed) {
    const __m512i ab = _mm512_adds_epi16(_mm512_packs_epi32(q[0], q[1]), p->zero_point);
    const __m512i cd = _mm512_adds_epi16(_mm512_packs_epi32(q[2], q[3]), p->zero_point);
    __m512i codes;
    if (is_signed) {
        codes = _mm512_packs_epi16(ab, cd);
        codes = _mm512_min_epi8(_mm512_max_epi8(codes, p->low), p->high);
    } else {
        codes = _mm512_packus_epi16(ab, cd);
        codes = _mm512_min_epu8(_mm512_max_epu8(codes, p->low), p->high);
    }
    return _mm512_permutexvar_epi32(p->order, codes);
}

/* Requantize and add the residual's codes, before the zero point of the sum. */
INLINE __m512 with_residual(const qk_epilogue *e, __m512 t, const uint8_t *residual, __mmask16 lanes_, int is_signed) {
    const float zero = (float)e->own_zero_point;
    t = _mm512_max_ps(t, _mm512_set1_ps((is_signed ? -128.0f : 0.0f) - zero));
    t = _mm512_min_ps(t, _mm512_set1_ps((is_signed ? 127.0f : 255.0f) - zero));
    t = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m128i bytes = _mm_maskz_loadu_epi8(lanes_, residual);
    const __m512i other = e->residual_is_signed ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes);
    const __m512 theirs = _mm512_cvtepi32_ps(_mm512_sub_epi32(other, _mm512_set1_epi32(e->residual_zero_point)));
    return _mm512_add_ps(_mm512_mul_ps(_mm512_set1_ps(e->own_ratio), t),
                         _mm512_mul_ps(_mm512_set1_ps(e->residual_ratio), theirs));
}

/* 64 codes through the table, where there is one. */
INLINE __m512i looked_up(const qk_epilogue *e, __m512i codes) {
    if (!e->table) return codes;
#ifdef VBMI
    return lookup64(codes, e->table);
#else
    _Alignas(64) uint8_t q[QK_PANEL];
    _mm512_store_si512(q, codes);
    for (int n = 0; n < QK_PANEL; n++) q[n] = e->table[q[n]];
    return _mm512_load_si512(q);
#endif
}

/* 64 codes that are `rows` rows of 16 V go to as many rows of c. */
INLINE void store_codes(__m512i codes, char *c, int64_t stride, int rows, int V, __mmask64 columns) {
    if (V == 1) {
        const __m128i lane[4] = {_mm512_castsi512_si128(codes), _mm512_extracti32x4_epi32(codes, 1),
                                 _mm512_extracti32x4_epi32(codes, 2), _mm512_extracti32x4_epi32(codes, 3)};
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) _mm_mask_storeu_epi8(c + r * stride, (__mmask16)columns, lane[r]);
    } else if (V == 2) {
        _mm256_mask_storeu_epi8(c, (__mmask32)columns, _mm512_castsi512_si256(codes));
        if (rows > 1) _mm256_mask_storeu_epi8(c + stride, (__mmask32)columns, _mm512_extracti64x4_epi64(codes, 1));
    } else {
        _mm512_mask_storeu_epi8(c, columns, codes);
    }
}

/* R rows of V vectors become rows of c, from row m on. R, V, is_signed and residual are literals. */
INLINE void finish_codes(const qk_matmul_tile *t, int64_t m, const __m512i *acc, int R, int V, int is_signed,
                         int residual) {
    const qk_epilogue *e = &t->e;
    const narrowing p = narrowing_of(e);
    const __m512 far = _mm512_set1_ps(40000.0f); /* keeps the conversion in range; the packs saturate the rest */
    const __mmask64 columns = t->columns >= 64 ? ~0ull : ((__mmask64)1 << t->columns) - 1;
    __m512 scale[4];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) scale[v] = _mm512_loadu_ps(e->scale + 16 * v);
    const int together = V == 1 ? 4 : V == 2 ? 2 : 1; /* rows that fill a vector of codes */
#pragma GCC unroll 8
    for (int first = 0; first < R; first += together) {
        const int rows = R - first < together ? R - first : together;
        __m512i q[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
#pragma GCC unroll 4
        for (int i = 0; i < rows * V; i++) {
            const int r = first + i / V, v = i % V;
            __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r * V + v]), scale[v]);
            if (residual)
                y = with_residual(e, y, e->residual + (m + r) * e->residual_stride + 16 * v, lanes(t->columns, v), is_signed);
            q[i] = _mm512_cvtps_epi32(_mm512_min_ps(far, y));
        }
        const __m512i codes = looked_up(e, narrowed(&p, q, is_signed));
        store_codes(codes, (char *)t->c + (m + first) * t->c_stride, t->c_stride, rows, V, columns);
    }
}

/* 16 integers or floats to where they are to lie; `whole` says that all of them are columns. */
INLINE void store_words(char *c, __m512i words, int whole, __mmask16 columns) {
    if (whole) _mm512_storeu_si512(c, words);
    else _mm512_mask_storeu_epi32(c, columns, words);
}

/* R rows of V vectors of words become rows of c. All but acc are literals, or copies that a store cannot change. */
INLINE void finish_words(const qk_epilogue *e, char *c, int64_t stride, int columns, const __m512i *acc, int R, int V,
                         int is_real, int whole) {
    __mmask16 mask[4];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) mask[v] = lanes(columns, v);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++)
            store_words(c + r * stride + 64 * v, is_real ? _mm512_castps_si512(real(e, acc[r * V + v], v)) : acc[r * V + v],
                        whole, mask[v]);
}

INLINE void finish(const qk_matmul_tile *t, int64_t m, const __m512i *acc, int R, int V) {
    const qk_epilogue *e = &t->e;
    const int64_t stride = t->c_stride;
    const int columns = t->columns;
    char *c = (char *)t->c + m * stride;
    if (e->out == QK_OUT_I32) {
        if (columns == 16 * V) finish_words(e, c, stride, columns, acc, R, V, 0, 1);
        else finish_words(e, c, stride, columns, acc, R, V, 0, 0);
    } else if (e->out == QK_OUT_F32) {
        if (columns == 16 * V) finish_words(e, c, stride, columns, acc, R, V, 1, 1);
        else finish_words(e, c, stride, columns, acc, R, V, 1, 0);
    } else if (e->residual) {
        if (e->out == QK_OUT_U8) finish_codes(t, m, acc, R, V, 0, 1);
        else finish_codes(t, m, acc, R, V, 1, 1);
    } else {
        if (e->out == QK_OUT_U8) finish_codes(t, m, acc, R, V, 0, 0);
        else finish_codes(t, m, acc, R, V, 1, 0);
    }
}

/* Where R rows of V accumulators begin: the terms of the product that zero points and an integer bias add. */
INLINE void begin(const qk_epilogue *e, int64_t m, __m512i *acc, int R, int V) {
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
        const __m512i start = e->start ? _mm512_loadu_si512(e->start + 16 * v) : _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) acc[r * V + v] = start;
    }
    if (e->row)
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int v = 0; v < V; v++)
                acc[r * V + v] = _mm512_add_epi32(acc[r * V + v], _mm512_mullo_epi32(_mm512_set1_epi32(e->row[m + r]),
                                                                  _mm512_loadu_si512(e->b_zero + 16 * v)));
    if (e->a_zero)
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int v = 0; v < V; v++)
                acc[r * V + v] = _mm512_add_epi32(acc[r * V + v], _mm512_mullo_epi32(_mm512_set1_epi32(e->a_zero[m + r]),
                                                                  _mm512_loadu_si512(e->colsum + 16 * v)));
}

/* One tile of R rows by V vectors of 16 columns, from row m on. R and V are literals, so that acc lives in registers. */
#define TILE(R, V)                                                                                \
    INLINE void tile_##R##x##V(const qk_matmul_tile *t, int64_t m) {                              \
        const int8_t *b = t->b;                                                                   \
        const int64_t groups = t->k / 4, tail = t->k % 4;                                         \
        __m512i acc[R * V];                                                                       \
        begin(&t->e, m, acc, R, V);                                                               \
        for (int64_t s = 0; s < t->taps; s++) {                                                   \
            const uint8_t *a[R];                                                                  \
            _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) a[r] = qk_tile_row(t, s, m + r);  \
            for (int64_t g = 0; g < groups; g++, b += 64 * V) {                                   \
                __m512i bv[V];                                                                    \
                _Pragma("GCC unroll 4") for (int v = 0; v < V; v++) bv[v] = _mm512_loadu_si512(b + 64 * v); \
                _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) {                             \
                    const __m512i av = _mm512_set1_epi32(four_bytes(a[r] + 4 * g));               \
                    _Pragma("GCC unroll 4") for (int v = 0; v < V; v++)                           \
                        acc[r * V + v] = _mm512_dpbusd_epi32(acc[r * V + v], av, bv[v]);          \
                }                                                                                 \
            }                                                                                     \
            if (tail) {                                                                           \
                _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) {                             \
                    const __m512i av = _mm512_set1_epi32(tail_bytes(a[r] + 4 * groups, tail));    \
                    _Pragma("GCC unroll 4") for (int v = 0; v < V; v++)                           \
                        acc[r * V + v] = _mm512_dpbusd_epi32(acc[r * V + v], av, _mm512_loadu_si512(b + 64 * v)); \
                }                                                                                 \
                b += 64 * V;                                                                      \
            }                                                                                     \
        }                                                                                         \
        finish(t, m, acc, R, V);                                                                  \
    }

TILE(1, 1) TILE(2, 1) TILE(3, 1) TILE(4, 1) TILE(5, 1) TILE(6, 1) TILE(7, 1) TILE(8, 1)
TILE(1, 2) TILE(2, 2) TILE(3, 2) TILE(4, 2) TILE(5, 2) TILE(6, 2) TILE(7, 2) TILE(8, 2)
TILE(1, 3) TILE(2, 3) TILE(3, 3) TILE(4, 3)
TILE(1, 4) TILE(2, 4) TILE(3, 4) TILE(4, 4) TILE(5, 4) TILE(6, 4)

#define CASE(R, V) case R: tile_##R##x##V(t, m); break;

#define ROWS(V, MOST, CASES)                                                                      \
    TARGET __attribute__((noinline)) static void rows_x##V(const qk_matmul_tile *t) {             \
        /* As even as can be: a last tile of one row would waste most of its latency. */          \
        const int64_t all = t->rows, tiles = (all + MOST - 1) / MOST, least = tiles ? all / tiles : 0, more = all - least * tiles; \
        int64_t m = 0;                                                                            \
        for (int64_t i = 0; i < tiles; i++) {                                                     \
            const int64_t rows = least + (i < more);                                              \
            switch (rows) { CASES }                                                               \
            m += rows;                                                                            \
        }                                                                                         \
    }
ROWS(1, 8, CASE(1, 1) CASE(2, 1) CASE(3, 1) CASE(4, 1) CASE(5, 1) CASE(6, 1) CASE(7, 1) CASE(8, 1))
ROWS(2, 8, CASE(1, 2) CASE(2, 2) CASE(3, 2) CASE(4, 2) CASE(5, 2) CASE(6, 2) CASE(7, 2) CASE(8, 2))
ROWS(3, 4, CASE(1, 3) CASE(2, 3) CASE(3, 3) CASE(4, 3))
ROWS(4, 6, CASE(1, 4) CASE(2, 4) CASE(3, 4) CASE(4, 4) CASE(5, 4) CASE(6, 4))

TARGET void FUNCTION(const qk_matmul_tile *t) {
    switch (t->width) {
        case 16: rows_x1(t); break;
        case 32: rows_x2(t); break;
        case 48: rows_x3(t); break;
        default: rows_x4(t); break;
    }
}
