/* Transposed bytes, AVX2: 16 rows by 32 columns in registers. */
#include "qk_isa.h"

#if QK_X86
#include <immintrin.h>

#include "qk_kernels.h"

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) TARGET

INLINE void plain(const uint8_t *x, int64_t x_stride, uint8_t *y, int64_t y_stride, int64_t rows, int64_t columns,
                  uint8_t flip) {
    for (int64_t c = 0; c < columns; c++)
        for (int64_t r = 0; r < rows; r++) y[c * y_stride + r] = x[r * x_stride + c] ^ flip;
}

/* Four rounds of interleaving row i with row i + 8 turn rows into columns, in each 128-bit lane by itself. */
#define ROUNDS(type, low, high, r)                                                                \
    for (int round = 0; round < 4; round++) {                                                     \
        type next[16];                                                                            \
        _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) {                                     \
            next[2 * i] = low(r[i], r[i + 8]);                                                    \
            next[2 * i + 1] = high(r[i], r[i + 8]);                                               \
        }                                                                                         \
        _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) r[i] = next[i];                     \
    }

TARGET static void block32(const uint8_t *x, int64_t x_stride, uint8_t *y, int64_t y_stride, __m256i flip) {
    __m256i r[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) r[i] = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(x + i * x_stride)), flip);
#pragma GCC unroll 4
    ROUNDS(__m256i, _mm256_unpacklo_epi8, _mm256_unpackhi_epi8, r)
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        _mm_storeu_si128((__m128i *)(y + i * y_stride), _mm256_castsi256_si128(r[i]));
        _mm_storeu_si128((__m128i *)(y + (i + 16) * y_stride), _mm256_extracti128_si256(r[i], 1));
    }
}

/* The first `rows` rows exist; the 16 - rows bytes after each column of y are written too. */
TARGET static void block16(const uint8_t *x, int64_t x_stride, uint8_t *y, int64_t y_stride, int64_t rows, __m128i flip) {
    __m128i r[16];
    for (int i = 0; i < 16; i++)
        r[i] = i < rows ? _mm_xor_si128(_mm_loadu_si128((const __m128i *)(x + i * x_stride)), flip) : flip;
#pragma GCC unroll 4
    ROUNDS(__m128i, _mm_unpacklo_epi8, _mm_unpackhi_epi8, r)
    for (int i = 0; i < 16; i++) _mm_storeu_si128((__m128i *)(y + i * y_stride), r[i]);
}

/* 16 columns of up to 4 rows, dense: pixels of few channels. 16 bytes are written for every 4 columns. */
INLINE void few16(const uint8_t *x, int64_t x_stride, uint8_t *y, int64_t rows, __m128i pack, __m128i flip) {
    __m128i r[4];
    for (int i = 0; i < 4; i++) r[i] = i < rows ? _mm_loadu_si128((const __m128i *)(x + i * x_stride)) : flip;
    const __m128i low01 = _mm_unpacklo_epi8(r[0], r[1]), high01 = _mm_unpackhi_epi8(r[0], r[1]);
    const __m128i low23 = _mm_unpacklo_epi8(r[2], r[3]), high23 = _mm_unpackhi_epi8(r[2], r[3]);
    const __m128i q[4] = {_mm_unpacklo_epi16(low01, low23), _mm_unpackhi_epi16(low01, low23),
                          _mm_unpacklo_epi16(high01, high23), _mm_unpackhi_epi16(high01, high23)};
    for (int i = 0; i < 4; i++)
        _mm_storeu_si128((__m128i *)(y + 4 * i * rows), _mm_shuffle_epi8(_mm_xor_si128(q[i], flip), pack));
}

TARGET void qk_transpose_u8_avx2(const uint8_t *x, int64_t x_stride, uint8_t *y, int64_t y_stride, int64_t rows,
                                 int64_t columns, uint8_t flip) {
    const __m256i flip32 = _mm256_set1_epi8((char)flip);
    const __m128i flip16 = _mm_set1_epi8((char)flip);
    if (columns < 16 || rows < 2 || (rows < 16 && y_stride != rows)) {
        plain(x, x_stride, y, y_stride, rows, columns, flip);
        return;
    }
    if (rows < 16) { /* dense: what one column writes past its end, the next ones overwrite */
        int64_t c = 0;
        if (rows <= 4) {
            uint8_t order[16];
            for (int i = 0; i < 16; i++) order[i] = (uint8_t)(i / rows * 4 + i % rows); /* those past 4 rows do not matter */
            const __m128i pack = _mm_loadu_si128((const __m128i *)order);
            for (; (columns - c - 16) * rows >= 16; c += 16) few16(x + c, x_stride, y + c * rows, rows, pack, flip16);
        }
        for (; (columns - c - 16) * rows >= 16; c += 16) block16(x + c, x_stride, y + c * rows, rows, rows, flip16);
        plain(x + c, x_stride, y + c * rows, rows, rows, columns - c, flip);
        return;
    }
    for (int64_t r = 0; r < rows; r += 16) {
        const int64_t at = r + 16 <= rows ? r : rows - 16; /* the last ones again rather than fewer */
        const uint8_t *from = x + at * x_stride;
        int64_t c = 0;
        for (; c + 32 <= columns; c += 32) block32(from + c, x_stride, y + c * y_stride + at, y_stride, flip32);
        for (; c < columns; c += 16) {
            if (c + 16 > columns) c = columns - 16;
            block16(from + c, x_stride, y + c * y_stride + at, y_stride, 16, flip16);
        }
    }
}
#endif
