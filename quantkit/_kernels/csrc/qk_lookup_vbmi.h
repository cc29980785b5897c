/* 64 lookups at once with AVX-512 VBMI: two lookups of 128 bytes, chosen between by the index's high bit. */
#ifndef QK_LOOKUP_VBMI_H
#define QK_LOOKUP_VBMI_H

#include <immintrin.h>

INLINE __m512i lookup64(__m512i x, const uint8_t *table) {
    const __m512i low = _mm512_permutex2var_epi8(_mm512_loadu_si512(table), x, _mm512_loadu_si512(table + 64));
    const __m512i high = _mm512_permutex2var_epi8(_mm512_loadu_si512(table + 128), x, _mm512_loadu_si512(table + 192));
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(x), low, high);
}

#endif
