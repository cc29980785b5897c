/* The vectors of the depthwise kernels: 256 bits, with TARGET defined, and DPBUSD where there is VNNI. */
#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline)) TARGET
#define LANES 2 /* of 128 bits */
#define V(name) _mm256_##name

typedef __m256i vec;
typedef __m256 reals;

#ifdef DPBUSD
typedef vec quads;   /* 4 taps side by side, of 8 channels */
typedef vec weights; /* and what they are multiplied by */
INLINE quads quads_of(vec bytes) { return bytes; }
INLINE weights weights_of(vec bytes) { return bytes; }
INLINE vec add_products(vec sums, quads q, weights w) { return DPBUSD(sums, q, w); }
#else
/* Products of bytes need 16 bits: taps 0 and 2, and taps 1 and 3, apart. */
typedef struct {
    vec even, odd;
} quads;
typedef quads weights;
INLINE quads quads_of(vec bytes) {
    return (quads){_mm256_and_si256(bytes, _mm256_set1_epi16(255)), _mm256_srli_epi16(bytes, 8)};
}
INLINE weights weights_of(vec bytes) {
    return (weights){_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), _mm256_srai_epi16(bytes, 8)};
}
INLINE vec add_products(vec sums, quads q, weights w) {
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(q.even, w.even));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(q.odd, w.odd));
}
#endif

INLINE vec load_vector(const void *at) { return _mm256_loadu_si256((const void *)at); }
INLINE int any_above(reals x, float limit) {
    return _mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_GT_OQ)) != 0;
}

/* Lane l of out[v] is lane v of 4 that in[2 l] and in[2 l + 1] hold. */
INLINE void transpose_lanes(const vec in[4], vec out[4]) {
    out[0] = _mm256_permute2x128_si256(in[0], in[2], 0x20), out[1] = _mm256_permute2x128_si256(in[0], in[2], 0x31);
    out[2] = _mm256_permute2x128_si256(in[1], in[3], 0x20), out[3] = _mm256_permute2x128_si256(in[1], in[3], 0x31);
}

/* `columns` bytes of each stream, from a place of its own. `streams` and `full` (there are 32 / streams) are literals. */
INLINE vec load_streams(const uint8_t *const *at, int streams, int full, int columns) {
    if (full && streams == 1) return _mm256_loadu_si256((const void *)at[0]);
    if (full) {
        const __m128i a = _mm_loadu_si128((const void *)at[0]), b = _mm_loadu_si128((const void *)at[1]);
        return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
    }
    uint8_t bytes[32] = {0};
    for (int s = 0; s < streams; s++)
        for (int n = 0; n < columns; n++) bytes[32 / streams * s + n] = at[s][n];
    return _mm256_loadu_si256((const void *)bytes);
}

/* The codes of the first `live` streams go to a place each. */
INLINE void store_streams(vec codes, char *const *to, int streams, int live, int full, int columns) {
    if (full && streams == 1) {
        _mm256_storeu_si256((void *)to[0], codes);
    } else if (full) {
        if (live > 0) _mm_storeu_si128((void *)to[0], _mm256_castsi256_si128(codes));
        if (live > 1) _mm_storeu_si128((void *)to[1], _mm256_extracti128_si256(codes, 1));
    } else {
        char bytes[32];
        _mm256_storeu_si256((void *)bytes, codes);
        for (int s = 0; s < live; s++)
            for (int n = 0; n < columns; n++) to[s][n] = bytes[32 / streams * s + n];
    }
}

#include "depthwise_common.h"
