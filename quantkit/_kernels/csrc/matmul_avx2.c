/* Integer products, AVX2, exact: bytes are widened to 16 bits and multiplied in pairs (vpmaddwd), because the 8-bit
 * multiply (vpmaddubsw) saturates on full-range data. Tiles of 6 rows by 8 columns. */
#include "qk_isa.h"

#if QK_X86
#include <immintrin.h>

#include "qk_kernels.h"

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) TARGET

#include "qk_matmul_epilogue.h"

#define CHUNK 1024 /* of K: so many columns of the tile's rows are widened at a time */

/* 16-bit copies of n bytes, and zeros up to a multiple of 4. */
INLINE void widen(const uint8_t *a, int64_t n, int16_t *out) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((__m256i *)(out + i), _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(a + i))));
    for (; i < n; i++) out[i] = a[i];
    for (; i % 4; i++) out[i] = 0;
}

/* Each lane of an accumulator holds one of the two pair sums of a column; the two are added at the end. */
#define TILE(R)                                                                                   \
    INLINE void tile_##R(int16_t a[][CHUNK], const int8_t *b, int64_t groups, int64_t step, int first, int column, \
                         int32_t sums[][QK_PANEL]) {                                              \
        __m256i acc[R][2];                                                                        \
        _Pragma("GCC unroll 6") for (int r = 0; r < R; r++) acc[r][0] = acc[r][1] = _mm256_setzero_si256(); \
        for (int64_t g = 0; g < groups; g++, b += step) {                                         \
            const __m256i b0 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)b));         \
            const __m256i b1 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(b + 16)));  \
            _Pragma("GCC unroll 6") for (int r = 0; r < R; r++) {                                 \
                long long four;                                                                   \
                __builtin_memcpy(&four, a[r] + 4 * g, 8);                                         \
                const __m256i av = _mm256_set1_epi64x(four);                                      \
                acc[r][0] = _mm256_add_epi32(acc[r][0], _mm256_madd_epi16(av, b0));               \
                acc[r][1] = _mm256_add_epi32(acc[r][1], _mm256_madd_epi16(av, b1));               \
            }                                                                                     \
        }                                                                                         \
        _Pragma("GCC unroll 6") for (int r = 0; r < R; r++) {                                     \
            const __m256i pairs = _mm256_hadd_epi32(acc[r][0], acc[r][1]);                        \
            __m256i *sum = (__m256i *)(sums[r] + column);                                         \
            const __m256i before = first ? _mm256_setzero_si256() : _mm256_loadu_si256(sum);      \
            _mm256_storeu_si256(sum, _mm256_add_epi32(before, _mm256_permute4x64_epi64(pairs, 0xd8))); \
        }                                                                                         \
    }
TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6)

#define CASE(R) case R: tile_##R(a, b + 4 * column, groups, step, first, column, sums); break;

TARGET void qk_matmul_u8s8_avx2(const qk_matmul_tile *t) {
    const int64_t tiles = (t->rows + 5) / 6, step = 4 * (int64_t)t->width;
    _Alignas(64) int16_t a[6][CHUNK];
    _Alignas(64) int32_t sums[6][QK_PANEL];
    int64_t m = 0;
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t rows = (t->rows - m + tiles - i - 1) / (tiles - i); /* as even as can be */
        int first = 1;
        for (int64_t s = 0; s < t->taps; s++)
            for (int64_t k = 0; k == 0 || k < t->k; k += CHUNK) {
                const int64_t depth = t->k - k < CHUNK ? t->k - k : CHUNK, groups = (depth + 3) / 4;
                const int8_t *b = t->b + (s * qk_groups(t->k) + k / 4) * step;
                for (int64_t r = 0; r < rows; r++) widen(qk_tile_row(t, s, m + r) + k, depth, a[r]);
                for (int column = 0; column < t->width; column += 8)
                    switch (rows) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) }
                first = 0;
            }
        for (int64_t r = 0; r < rows; r++)
            qk_epilogue_row(&t->e, m + r, t->columns, sums[r], (char *)t->c + (m + r) * t->c_stride);
        m += rows;
    }
}
#endif
