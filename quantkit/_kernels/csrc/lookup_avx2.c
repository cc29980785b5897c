/* Lookup, AVX2: 16 shuffles of 16 bytes each, one for every high nibble.
 *
 * vpshufb gives 0 where its index is negative, else the byte at the low nibble. As the index goes down by 16 a step and
 * saturates, a code with the high nibble j < 8 takes part in steps 0 to j; so step i looks up row i xor row i - 1, and
 * what is left of the xor over all steps is row j. Codes from 128 on do the same in a second half. */
#include "qk_isa.h"

#if QK_X86
#include <immintrin.h>

#include "qk_kernels.h"

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define WORTH_PREPARING 64 /* elements below which making the rows costs more than they save */

TARGET void qk_lookup_u8_avx2(const uint8_t *x, uint8_t *y, int64_t n, const uint8_t *table) {
    int64_t i = 0;
    if (n >= WORTH_PREPARING) {
        __m256i rows[16];
        for (int j = 0; j < 16; j++) {
            const __m128i row = _mm_loadu_si128((const __m128i *)(table + 16 * j));
            const __m128i before = j % 8 ? _mm_loadu_si128((const __m128i *)(table + 16 * j - 16)) : _mm_setzero_si128();
            rows[j] = _mm256_broadcastsi128_si256(_mm_xor_si128(row, before));
        }
        const __m256i step = _mm256_set1_epi8(16), half = _mm256_set1_epi8((char)0x80);
        for (; i + 32 <= n; i += 32) {
            __m256i low = _mm256_loadu_si256((const __m256i *)(x + i)), high = _mm256_xor_si256(low, half);
            __m256i found = _mm256_xor_si256(_mm256_shuffle_epi8(rows[0], low), _mm256_shuffle_epi8(rows[8], high));
#pragma GCC unroll 7
            for (int j = 1; j < 8; j++) {
                low = _mm256_subs_epi8(low, step);
                high = _mm256_subs_epi8(high, step);
                found = _mm256_xor_si256(found, _mm256_shuffle_epi8(rows[j], low));
                found = _mm256_xor_si256(found, _mm256_shuffle_epi8(rows[j + 8], high));
            }
            _mm256_storeu_si256((__m256i *)(y + i), found);
        }
    }
    for (; i < n; i++) y[i] = table[x[i]];
}
#endif
