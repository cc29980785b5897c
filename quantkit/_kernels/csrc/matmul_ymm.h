/* Integer products in 256-bit vectors, for whatever multiplies 4 unsigned by 4 signed bytes and adds: one source, included
 * with TARGET, DPBUSD and FUNCTION defined. Tiles of 6 rows by 16 columns fit the 16 registers of VEX; fewer rows take
 * wider tiles, so that a panel is read as it lies. */
#include <immintrin.h>

#include "qk_kernels.h"

#define INLINE static inline __attribute__((always_inline)) TARGET

#include "qk_matmul_epilogue.h"

#define CHUNK 64 /* groups of a panel that stay in the first-level cache, where few rows pass over it in several strips */

INLINE __m256i broadcast_bytes(const uint8_t *a, int64_t n) {
    uint32_t v = 0;
    __builtin_memcpy(&v, a, 4 <= n ? 4 : 0);
    for (int64_t i = 0; n < 4 && i < n; i++) v |= (uint32_t)a[i] << (8 * i);
    return _mm256_set1_epi32((int32_t)v);
}

/* R rows by V vectors of 8 columns, groups [from, to) of one tap, added to the sums unless they are the first. */
#define TILE(R, V)                                                                                \
    INLINE void tile_##R##x##V(const qk_matmul_tile *t, int64_t m, int column, int64_t tap, int64_t from, int64_t to, \
                               int first, int32_t sums[][QK_PANEL]) {                             \
        const int64_t step = 4 * (int64_t)t->width, whole = to <= t->k / 4 ? to : t->k / 4;       \
        const int8_t *b = t->b + (tap * qk_groups(t->k) + from) * step + 4 * column;              \
        const uint8_t *a[R];                                                                      \
        __m256i acc[R][V];                                                                        \
        _Pragma("GCC unroll 6") for (int r = 0; r < R; r++) a[r] = qk_tile_row(t, tap, m + r);    \
        _Pragma("GCC unroll 6") for (int r = 0; r < R; r++)                                       \
            _Pragma("GCC unroll 8") for (int v = 0; v < V; v++)                                   \
                acc[r][v] = first ? _mm256_setzero_si256()                                        \
                                  : _mm256_loadu_si256((const __m256i *)(sums[r] + column + 8 * v)); \
        for (int64_t g = from; g < whole; g++, b += step)                                         \
            _Pragma("GCC unroll 6") for (int r = 0; r < R; r++) {                                 \
                const __m256i av = broadcast_bytes(a[r] + 4 * g, 4);                              \
                _Pragma("GCC unroll 8") for (int v = 0; v < V; v++)                               \
                    acc[r][v] = DPBUSD(acc[r][v], av, _mm256_loadu_si256((const __m256i *)(b + 32 * v))); \
            }                                                                                     \
        if (whole < to)                                                                           \
            _Pragma("GCC unroll 6") for (int r = 0; r < R; r++) {                                 \
                const __m256i av = broadcast_bytes(a[r] + 4 * whole, t->k % 4);                   \
                _Pragma("GCC unroll 8") for (int v = 0; v < V; v++)                               \
                    acc[r][v] = DPBUSD(acc[r][v], av, _mm256_loadu_si256((const __m256i *)(b + 32 * v))); \
            }                                                                                     \
        _Pragma("GCC unroll 6") for (int r = 0; r < R; r++)                                       \
            _Pragma("GCC unroll 8") for (int v = 0; v < V; v++)                                   \
                _mm256_storeu_si256((__m256i *)(sums[r] + column + 8 * v), acc[r][v]);            \
    }
TILE(1, 2) TILE(2, 2) TILE(3, 2) TILE(4, 2) TILE(5, 2) TILE(6, 2) TILE(2, 4) TILE(3, 4) TILE(1, 8)

#define CASE(R) case R: tile_##R##x2(t, m, column, tap, from, to, first, sums); break;

TARGET FUNCTION(const qk_matmul_tile *t) {
    const int64_t tiles = (t->rows + 5) / 6, groups = qk_groups(t->k);
    _Alignas(64) int32_t sums[6][QK_PANEL];
    int64_t m = 0;
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t rows = (t->rows - m + tiles - i - 1) / (tiles - i); /* as even as can be */
        const int64_t chunk = rows == 2 || rows == 3 ? CHUNK : groups;
        int first = 1;
        for (int64_t tap = 0; tap < t->taps; tap++)
            for (int64_t from = 0; from == 0 || from < groups; from += chunk, first = 0) {
                const int64_t to = groups - from < chunk ? groups : from + chunk;
                int column = 0;
                if (rows == 1 && t->width == QK_PANEL) {
                    tile_1x8(t, m, 0, tap, from, to, first, sums);
                    column = QK_PANEL;
                }
                for (; (rows == 2 || rows == 3) && column + 32 <= t->width; column += 32) {
                    if (rows == 2) tile_2x4(t, m, column, tap, from, to, first, sums);
                    else tile_3x4(t, m, column, tap, from, to, first, sums);
                }
                for (; column < t->width; column += 16)
                    switch (rows) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) }
            }
        for (int64_t r = 0; r < rows; r++)
            qk_epilogue_row(&t->e, m + r, t->columns, sums[r], (char *)t->c + (m + r) * t->c_stride);
        m += rows;
    }
}
