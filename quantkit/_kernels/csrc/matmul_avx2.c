/* Integer products, AVX2, exact. The 8-bit multiply (vpmaddubsw) saturates on full-range data: it serves where all
 * weights lie in [-64, 63], as those trained or quantized to 7 bits do. Else bytes are widened to 16 bits and multiplied
 * in pairs (vpmaddwd), in tiles of 6 rows by 8 columns. */
#include "qk_isa.h"

#if QK_X86
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define DPBUSD(acc, a, b) \
    _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)))
#define FUNCTION static void half_range
#include "matmul_ymm.h"
#undef TILE
#undef CASE

#define WIDENED 256 /* of K: so many columns of the tile's rows are widened at a time, and so many rows of the panel reused */

/* 16-bit copies of n bytes, and zeros up to a multiple of 4. */
INLINE void widen(const uint8_t *a, int64_t n, int16_t *out) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((__m256i *)(out + i), _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(a + i))));
    for (; i < n; i++) out[i] = a[i];
    for (; i % 4; i++) out[i] = 0;
}

/* R rows by V vectors of 4 columns. Each lane of an accumulator holds one of the two pair sums of a column; the two are
 * added at the end. */
#define TILE(R, V)                                                                                \
    INLINE void wide_##R##x##V(int16_t a[][WIDENED], const int8_t *b, int64_t groups, int64_t step, int first, \
                               int column, int32_t sums[][QK_PANEL]) {                            \
        __m256i acc[R][V];                                                                        \
        _Pragma("GCC unroll 6") for (int r = 0; r < R; r++)                                       \
            _Pragma("GCC unroll 8") for (int v = 0; v < V; v++) acc[r][v] = _mm256_setzero_si256(); \
        _Pragma("GCC unroll 2") for (int64_t g = 0; g < groups; g++, b += step) {                \
            __m256i bv[V];                                                                        \
            _Pragma("GCC unroll 8") for (int v = 0; v < V; v++)                                   \
                bv[v] = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(b + 16 * v)));     \
            _Pragma("GCC unroll 6") for (int r = 0; r < R; r++) {                                 \
                long long four;                                                                   \
                __builtin_memcpy(&four, a[r] + 4 * g, 8);                                         \
                const __m256i av = _mm256_set1_epi64x(four);                                      \
                _Pragma("GCC unroll 8") for (int v = 0; v < V; v++)                               \
                    acc[r][v] = _mm256_add_epi32(acc[r][v], _mm256_madd_epi16(av, bv[v]));        \
            }                                                                                     \
        }                                                                                         \
        _Pragma("GCC unroll 6") for (int r = 0; r < R; r++)                                       \
            _Pragma("GCC unroll 4") for (int v = 0; v < V; v += 2) {                              \
                const __m256i pairs = _mm256_hadd_epi32(acc[r][v], acc[r][v + 1]);                \
                __m256i *sum = (__m256i *)(sums[r] + column + 4 * v);                             \
                const __m256i before = first ? _mm256_setzero_si256() : _mm256_loadu_si256(sum);  \
                _mm256_storeu_si256(sum, _mm256_add_epi32(before, _mm256_permute4x64_epi64(pairs, 0xd8))); \
            }                                                                                     \
    }
TILE(1, 2) TILE(2, 2) TILE(3, 2) TILE(4, 2) TILE(5, 2) TILE(6, 2) TILE(1, 8)

#define CASE(R) case R: wide_##R##x2(a, b + 4 * column, groups, step, first, column, sums); break;

TARGET void qk_matmul_u8s8_avx2(const qk_matmul_tile *t) {
    if (t->half_range) {
        half_range(t);
        return;
    }
    const int64_t tiles = (t->rows + 5) / 6, step = 4 * (int64_t)t->width;
    _Alignas(64) int16_t a[6][WIDENED];
    _Alignas(64) int32_t sums[6][QK_PANEL];
    int64_t m = 0;
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t rows = (t->rows - m + tiles - i - 1) / (tiles - i); /* as even as can be */
        int first = 1;
        for (int64_t tap = 0; tap < t->taps; tap++)
            for (int64_t k = 0; k == 0 || k < t->k; k += WIDENED, first = 0) {
                const int64_t depth = t->k - k < WIDENED ? t->k - k : WIDENED, groups = (depth + 3) / 4;
                const int8_t *b = t->b + (tap * qk_groups(t->k) + k / 4) * step;
                int column = 0;
                for (int64_t r = 0; r < rows; r++) widen(qk_tile_row(t, tap, m + r) + k, depth, a[r]);
                for (; rows == 1 && column + 32 <= t->width; column += 32)
                    wide_1x8(a, b + 4 * column, groups, step, first, column, sums);
                for (; column < t->width; column += 8)
                    switch (rows) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) }
            }
        for (int64_t r = 0; r < rows; r++)
            qk_epilogue_row(&t->e, m + r, t->columns, sums[r], (char *)t->c + (m + r) * t->c_stride);
        m += rows;
    }
}
#endif
