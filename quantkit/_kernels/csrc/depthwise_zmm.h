/* The vectors of the depthwise kernels: 512 bits, VNNI. */
#include <immintrin.h>

#define TARGET __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define INLINE static inline __attribute__((always_inline)) TARGET
#define LANES 4 /* of 128 bits */
#define V(name) _mm512_##name

typedef __m512i vec;
typedef __m512 reals;
typedef vec quads;   /* 4 taps side by side, of 16 channels */
typedef vec weights; /* and what they are multiplied by */

INLINE quads quads_of(vec bytes) { return bytes; }
INLINE weights weights_of(vec bytes) { return bytes; }
INLINE vec add_products(vec sums, quads q, weights w) { return _mm512_dpbusd_epi32(sums, q, w); }

INLINE vec load_vector(const void *at) { return _mm512_loadu_si512(at); }
INLINE int any_above(reals x, float limit) { return _mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_GT_OQ) != 0; }

/* Lane l of out[v] is lane v of in[l]. */
INLINE void transpose_lanes(const vec in[4], vec out[4]) {
    const vec a = _mm512_shuffle_i32x4(in[0], in[1], 0x44), b = _mm512_shuffle_i32x4(in[2], in[3], 0x44);
    const vec c = _mm512_shuffle_i32x4(in[0], in[1], 0xee), d = _mm512_shuffle_i32x4(in[2], in[3], 0xee);
    out[0] = _mm512_shuffle_i32x4(a, b, 0x88), out[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
    out[2] = _mm512_shuffle_i32x4(c, d, 0x88), out[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
}

/* `columns` bytes of each stream, from a place of its own. `streams` and `full` (there are 64 / streams) are literals. */
INLINE vec load_streams(const uint8_t *const *at, int streams, int full, int columns) {
    if (streams == 1)
        return full ? _mm512_loadu_si512(at[0]) : _mm512_maskz_loadu_epi8(((__mmask64)1 << columns) - 1, at[0]);
    const __mmask32 mask = full ? ~0u : (__mmask32)((1u << columns) - 1);
    if (streams == 2) {
        const __m256i a = full ? _mm256_loadu_si256((const void *)at[0]) : _mm256_maskz_loadu_epi8(mask, at[0]);
        const __m256i b = full ? _mm256_loadu_si256((const void *)at[1]) : _mm256_maskz_loadu_epi8(mask, at[1]);
        return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
    }
    __m128i a[4];
#pragma GCC unroll 4
    for (int s = 0; s < 4; s++)
        a[s] = full ? _mm_loadu_si128((const void *)at[s]) : _mm_maskz_loadu_epi8((__mmask16)mask, at[s]);
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(a[0]), a[1], 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(a[2]), a[3], 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* The codes of the first `live` streams go to a place each. */
INLINE void store_streams(vec codes, char *const *to, int streams, int live, int full, int columns) {
    if (streams == 1) {
        if (full) _mm512_storeu_si512(to[0], codes);
        else _mm512_mask_storeu_epi8(to[0], ((__mmask64)1 << columns) - 1, codes);
        return;
    }
    const __mmask32 mask = full ? ~0u : (__mmask32)((1u << columns) - 1);
    if (streams == 2) {
        const __m256i half[2] = {_mm512_castsi512_si256(codes), _mm512_extracti64x4_epi64(codes, 1)};
#pragma GCC unroll 2
        for (int s = 0; s < 2; s++)
            if (s < live) {
                if (full) _mm256_storeu_si256((void *)to[s], half[s]);
                else _mm256_mask_storeu_epi8(to[s], mask, half[s]);
            }
        return;
    }
    const __m128i lane[4] = {_mm512_castsi512_si128(codes), _mm512_extracti32x4_epi32(codes, 1),
                             _mm512_extracti32x4_epi32(codes, 2), _mm512_extracti32x4_epi32(codes, 3)};
#pragma GCC unroll 4
    for (int s = 0; s < 4; s++)
        if (s < live) {
            if (full) _mm_storeu_si128((void *)to[s], lane[s]);
            else _mm_mask_storeu_epi8(to[s], (__mmask16)mask, lane[s]);
        }
}

#include "depthwise_common.h"
