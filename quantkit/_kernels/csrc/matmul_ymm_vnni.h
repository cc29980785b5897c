/* Integer products, 256-bit VNNI, for its VEX form (AVX-VNNI) and its EVEX form (AVX-512 VL): one source, included with
 * TARGET, DPBUSD and FUNCTION defined. Tiles of 6 rows by 16 columns fit the 16 registers of VEX. */
#include <immintrin.h>

#include "qk_kernels.h"

#define INLINE static inline __attribute__((always_inline)) TARGET

#include "qk_matmul_epilogue.h"

INLINE __m256i broadcast_bytes(const uint8_t *a, int64_t n) {
    uint32_t v = 0;
    __builtin_memcpy(&v, a, 4 <= n ? 4 : 0);
    for (int64_t i = 0; n < 4 && i < n; i++) v |= (uint32_t)a[i] << (8 * i);
    return _mm256_set1_epi32((int32_t)v);
}

#define TILE(R)                                                                                   \
    INLINE void tile_##R(const qk_matmul_tile *t, int64_t m, int column, int32_t sums[][QK_PANEL]) { \
        const int8_t *b = t->b + 4 * column;                                                      \
        const int64_t groups = t->k / 4, tail = t->k % 4, step = 4 * (int64_t)t->width;           \
        __m256i acc[R][2];                                                                        \
        _Pragma("GCC unroll 6") for (int r = 0; r < R; r++) acc[r][0] = acc[r][1] = _mm256_setzero_si256(); \
        for (int64_t s = 0; s < t->taps; s++) {                                                   \
            const uint8_t *a[R];                                                                  \
            _Pragma("GCC unroll 6") for (int r = 0; r < R; r++) a[r] = qk_tile_row(t, s, m + r);  \
            for (int64_t g = 0; g < groups; g++, b += step) {                                     \
                const __m256i b0 = _mm256_loadu_si256((const __m256i *)b);                        \
                const __m256i b1 = _mm256_loadu_si256((const __m256i *)(b + 32));                 \
                _Pragma("GCC unroll 6") for (int r = 0; r < R; r++) {                             \
                    const __m256i av = broadcast_bytes(a[r] + 4 * g, 4);                          \
                    acc[r][0] = DPBUSD(acc[r][0], av, b0);                                        \
                    acc[r][1] = DPBUSD(acc[r][1], av, b1);                                        \
                }                                                                                 \
            }                                                                                     \
            if (tail) {                                                                           \
                _Pragma("GCC unroll 6") for (int r = 0; r < R; r++) {                             \
                    const __m256i av = broadcast_bytes(a[r] + 4 * groups, tail);                  \
                    acc[r][0] = DPBUSD(acc[r][0], av, _mm256_loadu_si256((const __m256i *)b));    \
                    acc[r][1] = DPBUSD(acc[r][1], av, _mm256_loadu_si256((const __m256i *)(b + 32))); \
                }                                                                                 \
                b += step;                                                                        \
            }                                                                                     \
        }                                                                                         \
        _Pragma("GCC unroll 6") for (int r = 0; r < R; r++) {                                     \
            _mm256_storeu_si256((__m256i *)(sums[r] + column), acc[r][0]);                        \
            _mm256_storeu_si256((__m256i *)(sums[r] + column + 8), acc[r][1]);                    \
        }                                                                                         \
    }
TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6)

#define CASE(R) case R: tile_##R(t, m, column, sums); break;

TARGET void FUNCTION(const qk_matmul_tile *t) {
    const int64_t tiles = (t->rows + 5) / 6;
    _Alignas(64) int32_t sums[6][QK_PANEL];
    int64_t m = 0;
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t rows = (t->rows - m + tiles - i - 1) / (tiles - i); /* as even as can be */
        for (int column = 0; column < t->width; column += 16)
            switch (rows) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) }
        for (int64_t r = 0; r < rows; r++)
            qk_epilogue_row(&t->e, m + r, t->columns, sums[r], (char *)t->c + (m + r) * t->c_stride);
        m += rows;
    }
}
