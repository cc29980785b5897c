/* Resize, AVX2. A weight of 23 bits is two of 16, so that vpmaddwd takes two taps at a time and every sum is exact. */
#include "qk_isa.h"

#if QK_X86
#include <immintrin.h>
#include <string.h>

#include "qk_kernels.h"

#define TARGET __attribute__((target("avx2,fma,f16c")))

/* The bytes of the sums of both halves, rounded: (high * 2^11 + low + half) >> 22. */
TARGET static inline __m256i join(__m256i high, __m256i low) {
    const __m256i half = _mm256_set1_epi32(1 << (QK_RESIZE_BITS - 1));
    const __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(high, QK_RESIZE_LOW_BITS), _mm256_add_epi32(low, half));
    return _mm256_srai_epi32(sum, QK_RESIZE_BITS);
}

TARGET void qk_resize_row_u8x3_avx2(const uint8_t *x, int64_t pixel, uint8_t *y, int64_t plane,
                                    const qk_resize_axis *axis) {
    /* Of four pixels: pairs of neighbours in 16 bits, the first two in the lower half, the others in the upper one. */
    const __m256i of_3 = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, /* */
                                          6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    const __m256i of_4 = _mm256_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, -1, -1, -1, -1, /* */
                                          8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, -1, -1, -1, -1);
    const __m256i pairs = pixel == 3 ? of_3 : of_4;
    const __m256i spread = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    const __m128i half = _mm_set1_epi32(1 << (QK_RESIZE_BITS - 1));
    for (int64_t i = 0; i < axis->count; i++) {
        const uint8_t *from = x + pixel * axis->first[i];
        const int16_t *highs = axis->high + i * axis->taps, *lows = axis->low + i * axis->taps;
        __m256i high = _mm256_setzero_si256(), low = high;
        for (int64_t t = 0; t < axis->taps; t += 4) {
            const __m128i four = _mm_loadu_si128((const __m128i *)(from + pixel * t));
            const __m256i p = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(four), pairs);
            const __m256i h = _mm256_castsi128_si256(_mm_loadl_epi64((const __m128i *)(highs + t)));
            const __m256i l = _mm256_castsi128_si256(_mm_loadl_epi64((const __m128i *)(lows + t)));
            high = _mm256_add_epi32(high, _mm256_madd_epi16(p, _mm256_permutevar8x32_epi32(h, spread)));
            low = _mm256_add_epi32(low, _mm256_madd_epi16(p, _mm256_permutevar8x32_epi32(l, spread)));
        }
        const __m256i sums = _mm256_add_epi32(_mm256_slli_epi32(high, QK_RESIZE_LOW_BITS), low);
        __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
        sum = _mm_srai_epi32(_mm_add_epi32(sum, half), QK_RESIZE_BITS);
        sum = _mm_packus_epi16(_mm_packs_epi32(sum, sum), sum);
        const uint32_t rgb = (uint32_t)_mm_cvtsi128_si32(sum);
        y[i] = (uint8_t)rgb;
        y[plane + i] = (uint8_t)(rgb >> 8);
        y[2 * plane + i] = (uint8_t)(rgb >> 16);
    }
}

/* Two 16-bit weights for vpmaddwd. */
TARGET static inline __m256i two(const int16_t *weights) {
    int32_t both;
    memcpy(&both, weights, sizeof both);
    return _mm256_set1_epi32(both);
}

TARGET void qk_resize_column_u8_avx2(const uint8_t *x, int64_t stride, uint8_t *y, int64_t n, const int16_t *high,
                                     const int16_t *low, int64_t taps) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i h0 = _mm256_setzero_si256(), h1 = h0, l0 = h0, l1 = h0;
        for (int64_t t = 0; t < taps; t += 2) {
            const __m128i a = _mm_loadu_si128((const __m128i *)(x + t * stride + i));
            const __m128i b = _mm_loadu_si128((const __m128i *)(x + (t + 1) * stride + i));
            const __m256i p0 = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b));
            const __m256i p1 = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b));
            const __m256i h = two(high + t), l = two(low + t);
            h0 = _mm256_add_epi32(h0, _mm256_madd_epi16(p0, h));
            h1 = _mm256_add_epi32(h1, _mm256_madd_epi16(p1, h));
            l0 = _mm256_add_epi32(l0, _mm256_madd_epi16(p0, l));
            l1 = _mm256_add_epi32(l1, _mm256_madd_epi16(p1, l));
        }
        const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(join(h0, l0), join(h1, l1)), 0xd8);
        const __m128i bytes =
            _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128((__m128i *)(y + i), bytes);
    }
    if (i < n) qk_resize_column_u8_scalar(x + i, stride, y + i, n - i, high, low, taps);
}
#endif
