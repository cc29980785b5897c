/* Depthwise products in 256-bit vectors, 16 channels at a time, with TARGET and FUNCTION defined: by DPBUSD where that
 * is defined, else by 16-bit products in pairs. */
#include <immintrin.h>

#include "qk_kernels.h"

#define INLINE static inline __attribute__((always_inline)) TARGET
#define GROUPS 32 /* of 4 taps, whose weights fit the buffer; longer kernels take the portable path */

#include "qk_matmul_epilogue.h"

/* 16 bytes, of which n exist. */
INLINE __m128i load16(const uint8_t *a, int n) {
    if (n >= 16) return _mm_loadu_si128((const __m128i *)a);
    uint8_t bytes[16] = {0};
    for (int i = 0; i < n; i++) bytes[i] = a[i];
    return _mm_loadu_si128((const __m128i *)bytes);
}

#ifdef DPBUSD
typedef int8_t weight;
#define PER_GROUP 64 /* weights of 16 channels */
INLINE void prepare(const int8_t *b, weight *w) { __builtin_memcpy(w, b, PER_GROUP); }

INLINE void multiply(__m128i a0, __m128i a1, __m128i a2, __m128i a3, const weight *w, __m256i acc[2]) {
    const __m128i low01 = _mm_unpacklo_epi8(a0, a1), high01 = _mm_unpackhi_epi8(a0, a1);
    const __m128i low23 = _mm_unpacklo_epi8(a2, a3), high23 = _mm_unpackhi_epi8(a2, a3);
    const __m256i low = _mm256_set_m128i(_mm_unpackhi_epi16(low01, low23), _mm_unpacklo_epi16(low01, low23));
    const __m256i high = _mm256_set_m128i(_mm_unpackhi_epi16(high01, high23), _mm_unpacklo_epi16(high01, high23));
    acc[0] = DPBUSD(acc[0], low, _mm256_loadu_si256((const __m256i *)w));
    acc[1] = DPBUSD(acc[1], high, _mm256_loadu_si256((const __m256i *)(w + 32)));
}
#else
typedef int16_t weight;
#define PER_GROUP 64
/* Pairs of taps 0 and 1 for all 16 channels, then those of taps 2 and 3. */
INLINE void prepare(const int8_t *b, weight *w) {
    for (int n = 0; n < 16; n++)
        for (int k = 0; k < 4; k++) w[k / 2 * 32 + 2 * n + k % 2] = b[4 * n + k];
}

INLINE void pair(__m128i a0, __m128i a1, const weight *w, __m256i acc[2]) {
    const __m256i low = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a0, a1));
    const __m256i high = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a0, a1));
    acc[0] = _mm256_add_epi32(acc[0], _mm256_madd_epi16(low, _mm256_loadu_si256((const __m256i *)w)));
    acc[1] = _mm256_add_epi32(acc[1], _mm256_madd_epi16(high, _mm256_loadu_si256((const __m256i *)(w + 16))));
}

INLINE void multiply(__m128i a0, __m128i a1, __m128i a2, __m128i a3, const weight *w, __m256i acc[2]) {
    pair(a0, a1, w, acc);
    pair(a2, a3, w + 32, acc);
}
#endif

TARGET void FUNCTION(const qk_matmul_tile *t) {
    const int64_t groups = t->taps / 4;
    if (groups > GROUPS) {
        qk_depthwise_u8s8_scalar(t);
        return;
    }
    _Alignas(32) weight w[QK_PANEL / 16][GROUPS * PER_GROUP];
    _Alignas(32) int32_t sums[QK_PANEL];
    for (int first = 0; first < t->columns; first += 16)
        for (int64_t g = 0; g < groups; g++)
            prepare(t->b + (g * t->width + first) * 4, w[first / 16] + g * PER_GROUP);
    for (int64_t p = 0; p < t->rows; p++) {
        for (int first = 0; first < t->columns; first += 16) {
            __m256i acc[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
            const int n = t->columns - first;
            for (int64_t g = 0; g < groups; g++) {
                __m128i a[4];
#pragma GCC unroll 4
                for (int k = 0; k < 4; k++) a[k] = load16(qk_tile_row(t, 4 * g + k, p) + first, n);
                multiply(a[0], a[1], a[2], a[3], w[first / 16] + g * PER_GROUP, acc);
            }
            _mm256_store_si256((__m256i *)(sums + first), acc[0]);
            _mm256_store_si256((__m256i *)(sums + first + 8), acc[1]);
        }
        qk_epilogue_row(&t->e, p, t->columns, sums, (char *)t->c + p * t->c_stride);
    }
}
