/* Bilinear resizing, AVX2: eight pixels at a time along a row, sixteen codes down the columns. */
#include "qk_isa.h"

#if QK_X86
#include <immintrin.h>
#include <string.h>

#include "qk_kernels.h"

#define TARGET __attribute__((target("avx2,fma,f16c")))

/* Two 16-bit weights, in every lane of 32. */
TARGET static inline __m128i two(const int16_t *weights) {
    int32_t both;
    memcpy(&both, weights, sizeof both);
    return _mm_set1_epi32(both);
}

TARGET void qk_linear_row_u8x3_avx2(const uint8_t *x, int64_t pixel, int16_t *y, int64_t plane,
                                    const qk_linear_axis *axis) {
    /* Of two neighbours: the pairs of red, green and blue, in 16 bits. */
    const __m128i of_3 = _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1);
    const __m128i of_4 = _mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, -1, -1, -1, -1);
    const __m256i pairs = _mm256_broadcastsi128_si256(pixel == 3 ? of_3 : of_4);
    const int32_t *first = axis->first;
    const int16_t *weights = axis->weights;
    int64_t i = 0;
    for (; i + 8 <= axis->count; i += 8) {
        __m256i v[4]; /* pixel k in the lower half, pixel k + 4 in the upper one: red, green, blue, nothing */
        for (int k = 0; k < 4; k++) {
            const __m128i a = _mm_loadl_epi64((const __m128i *)(x + pixel * first[i + k]));
            const __m128i b = _mm_loadl_epi64((const __m128i *)(x + pixel * first[i + k + 4]));
            const __m256i p = _mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1), pairs);
            const __m256i w = _mm256_inserti128_si256(_mm256_castsi128_si256(two(weights + 2 * (i + k))),
                                                      two(weights + 2 * (i + k + 4)), 1);
            v[k] = _mm256_srai_epi32(_mm256_madd_epi16(p, w), 4);
        }
        const __m256i rg0 = _mm256_unpacklo_epi32(v[0], v[1]), rg1 = _mm256_unpacklo_epi32(v[2], v[3]);
        const __m256i b0 = _mm256_unpackhi_epi32(v[0], v[1]), b1 = _mm256_unpackhi_epi32(v[2], v[3]);
        const __m256i red = _mm256_unpacklo_epi64(rg0, rg1), green = _mm256_unpackhi_epi64(rg0, rg1);
        const __m256i blue = _mm256_unpacklo_epi64(b0, b1);
        const __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(red, green), 0xd8);
        const __m256i last = _mm256_permute4x64_epi64(_mm256_packs_epi32(blue, blue), 0xd8);
        _mm_storeu_si128((__m128i *)(y + i), _mm256_castsi256_si128(both));
        _mm_storeu_si128((__m128i *)(y + plane + i), _mm256_extracti128_si256(both, 1));
        _mm_storeu_si128((__m128i *)(y + 2 * plane + i), _mm256_castsi256_si128(last));
    }
    if (i < axis->count) {
        const qk_linear_axis rest = {first + i, axis->second, weights + 2 * i, axis->count - i};
        qk_linear_row_u8x3_scalar(x, pixel, y + i, plane, &rest);
    }
}

TARGET void qk_linear_column_u8_avx2(const int16_t *top, const int16_t *bottom, uint8_t *y, int64_t n,
                                     const int16_t *weights) {
    const __m256i w0 = _mm256_set1_epi16(weights[0]), w1 = _mm256_set1_epi16(weights[1]);
    const __m256i half = _mm256_set1_epi16(2);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m256i a = _mm256_mulhi_epi16(_mm256_loadu_si256((const __m256i *)(top + i)), w0);
        const __m256i b = _mm256_mulhi_epi16(_mm256_loadu_si256((const __m256i *)(bottom + i)), w1);
        const __m256i sum = _mm256_srai_epi16(_mm256_add_epi16(_mm256_add_epi16(a, b), half), 2);
        const __m128i codes = _mm_packus_epi16(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
        _mm_storeu_si128((__m128i *)(y + i), codes);
    }
    if (i < n) qk_linear_column_u8_scalar(top + i, bottom + i, y + i, n - i, weights);
}
#endif
