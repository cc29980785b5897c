/* Integer products, 512-bit VNNI: tiles of 4 rows by 64 columns (8 rows by 32 or fewer), the whole of K in registers. */
#include "qk_isa.h"

#if QK_X86
#include <immintrin.h>

#include "qk_kernels.h"

#define TARGET __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define INLINE static inline __attribute__((always_inline)) TARGET

#include "qk_matmul_epilogue.h"

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

/* Codes without a table or a residual, 64 columns: the common end, kept in registers. */
INLINE void requantize64(const qk_epilogue *e, const __m512i *acc, char *c, __mmask64 columns) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512 far = _mm512_set1_ps(40000.0f); /* keeps the conversion in range; the packs saturate the rest */
    __m512i q[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
        const __m512 scale = _mm512_loadu_ps(e->scale + 16 * v);
        q[v] = _mm512_cvtps_epi32(_mm512_min_ps(far, _mm512_mul_ps(_mm512_cvtepi32_ps(acc[v]), scale)));
    }
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
    _mm512_mask_storeu_epi8(c, columns, _mm512_permutexvar_epi32(order, codes));
}

/* The terms of the product that zero points and an integer bias add, 16 columns at a time. */
INLINE __m512i terms(const qk_epilogue *e, int64_t row, int v) {
    __m512i sum = e->start ? _mm512_loadu_si512(e->start + 16 * v) : _mm512_setzero_si512();
    if (e->row) {
        const __m512i b_zero = _mm512_loadu_si512(e->b_zero + 16 * v);
        sum = _mm512_add_epi32(sum, _mm512_mullo_epi32(_mm512_set1_epi32(e->row[row]), b_zero));
    }
    if (e->a_zero) {
        const __m512i colsum = _mm512_loadu_si512(e->colsum + 16 * v);
        sum = _mm512_add_epi32(sum, _mm512_mullo_epi32(_mm512_set1_epi32(e->a_zero[row]), colsum));
    }
    return sum;
}

/* One tile of R rows by V vectors of 16 columns, from row m on. R and V are literals, so that acc lives in registers. */
#define TILE(R, V)                                                                                \
    INLINE void tile_##R##x##V(const qk_matmul_tile *t, int64_t m) {                              \
        const int8_t *b = t->b;                                                                   \
        const int64_t groups = t->k / 4, tail = t->k % 4;                                         \
        __m512i acc[R][V];                                                                        \
        _Pragma("GCC unroll 8") for (int r = 0; r < R; r++)                                       \
            _Pragma("GCC unroll 4") for (int v = 0; v < V; v++) acc[r][v] = terms(&t->e, m + r, v); \
        for (int64_t s = 0; s < t->taps; s++) {                                                   \
            const uint8_t *a[R];                                                                  \
            _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) a[r] = qk_tile_row(t, s, m + r);  \
            for (int64_t g = 0; g < groups; g++, b += 64 * V) {                                   \
                __m512i bv[V];                                                                    \
                _Pragma("GCC unroll 4") for (int v = 0; v < V; v++) bv[v] = _mm512_loadu_si512(b + 64 * v); \
                _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) {                             \
                    const __m512i av = _mm512_set1_epi32(four_bytes(a[r] + 4 * g));               \
                    _Pragma("GCC unroll 4") for (int v = 0; v < V; v++)                           \
                        acc[r][v] = _mm512_dpbusd_epi32(acc[r][v], av, bv[v]);                    \
                }                                                                                 \
            }                                                                                     \
            if (tail) {                                                                           \
                _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) {                             \
                    const __m512i av = _mm512_set1_epi32(tail_bytes(a[r] + 4 * groups, tail));    \
                    _Pragma("GCC unroll 4") for (int v = 0; v < V; v++)                           \
                        acc[r][v] = _mm512_dpbusd_epi32(acc[r][v], av, _mm512_loadu_si512(b + 64 * v)); \
                }                                                                                 \
                b += 64 * V;                                                                      \
            }                                                                                     \
        }                                                                                         \
        _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) finish(t, m + r, acc[r], V);           \
    }

INLINE void finish(const qk_matmul_tile *t, int64_t row, const __m512i *acc, int vectors) {
    const qk_epilogue *e = &t->e;
    char *c = (char *)t->c + row * t->c_stride;
    const int columns = t->columns;
    if (e->out == QK_OUT_I32) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            const int left = columns - 16 * v;
            const __mmask16 m = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
            _mm512_mask_storeu_epi32((int32_t *)c + 16 * v, m, acc[v]);
        }
    } else if (e->out == QK_OUT_F32 || e->table || e->residual || vectors < 4) {
        _Alignas(64) int32_t sums[QK_PANEL];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) _mm512_store_si512(sums + 16 * v, acc[v]);
        qk_epilogue done = *e;
        done.start = 0, done.row = 0, done.a_zero = 0; /* they began in the accumulators */
        qk_epilogue_row(&done, row, columns, sums, c);
    } else {
        requantize64(e, acc, c, columns >= 64 ? ~0ull : ((__mmask64)1 << columns) - 1);
    }
}

TILE(1, 1) TILE(2, 1) TILE(3, 1) TILE(4, 1) TILE(5, 1) TILE(6, 1) TILE(7, 1) TILE(8, 1)
TILE(1, 2) TILE(2, 2) TILE(3, 2) TILE(4, 2) TILE(5, 2) TILE(6, 2) TILE(7, 2) TILE(8, 2)
TILE(1, 3) TILE(2, 3) TILE(3, 3) TILE(4, 3)
TILE(1, 4) TILE(2, 4) TILE(3, 4) TILE(4, 4)

#define CASE(R, V) case R: tile_##R##x##V(t, m); break;

#define ROWS(V, MOST, CASES)                                                                      \
    TARGET __attribute__((noinline)) static void rows_x##V(const qk_matmul_tile *t) {             \
        /* As even as can be: a last tile of one row would waste most of its latency. */          \
        const int64_t tiles = (t->rows + MOST - 1) / MOST;                                        \
        int64_t m = 0;                                                                            \
        for (int64_t i = 0; i < tiles; i++) {                                                     \
            const int64_t rows = (t->rows - m + tiles - i - 1) / (tiles - i);                     \
            switch (rows) { CASES }                                                               \
            m += rows;                                                                            \
        }                                                                                         \
    }
ROWS(1, 8, CASE(1, 1) CASE(2, 1) CASE(3, 1) CASE(4, 1) CASE(5, 1) CASE(6, 1) CASE(7, 1) CASE(8, 1))
ROWS(2, 8, CASE(1, 2) CASE(2, 2) CASE(3, 2) CASE(4, 2) CASE(5, 2) CASE(6, 2) CASE(7, 2) CASE(8, 2))
ROWS(3, 4, CASE(1, 3) CASE(2, 3) CASE(3, 3) CASE(4, 3))
ROWS(4, 4, CASE(1, 4) CASE(2, 4) CASE(3, 4) CASE(4, 4))

TARGET void qk_matmul_u8s8_avx512vnni(const qk_matmul_tile *t) {
    switch (t->width) {
        case 16: rows_x1(t); break;
        case 32: rows_x2(t); break;
        case 48: rows_x3(t); break;
        default: rows_x4(t); break;
    }
}
#endif
