/* CRC-32 by carry-less products. Bytes that lie d bits before the end count as they would at the end, times x^d: 64 bytes
 * are folded onto the 64 that follow, those at last onto 16, and what remains is 16 bytes of the same CRC. */
#include "qk_isa.h"

#if QK_X86
#include <immintrin.h>

#include "qk_kernels.h"

#define TARGET __attribute__((target("avx2,pclmul")))
#define INLINE static inline __attribute__((always_inline)) TARGET

/* x^(d + 32) and x^(d - 32) modulo the polynomial, bits reflected, for distances d of 512 and of 128 bits. */
#define FOLD_512 _mm_set_epi64x(0x1c6e41596, 0x154442bd4)
#define FOLD_128 _mm_set_epi64x(0x0ccaa009e, 0x1751997d0)

INLINE __m128i load(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }

INLINE __m128i fold(__m128i x, __m128i next, __m128i by) {
    const __m128i low = _mm_clmulepi64_si128(x, by, 0x00), high = _mm_clmulepi64_si128(x, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

TARGET uint32_t qk_crc32_avx2(const void *x, int64_t n, uint32_t state) {
    const uint8_t *p = x;
    if (n < 128) return qk_crc32_scalar(p, n, state);
    const __m128i by = FOLD_512, near = FOLD_128;
    __m128i a = _mm_xor_si128(load(p), _mm_cvtsi32_si128((int)state)), b = load(p + 16), c = load(p + 32),
            d = load(p + 48);
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
        a = fold(a, load(p), by);
        b = fold(b, load(p + 16), by);
        c = fold(c, load(p + 32), by);
        d = fold(d, load(p + 48), by);
    }
    a = fold(fold(fold(a, b, near), c, near), d, near);
    for (; n >= 16; p += 16, n -= 16) a = fold(a, load(p), near);
    uint8_t rest[16];
    _mm_storeu_si128((__m128i *)rest, a);
    return qk_crc32_scalar(p, n, qk_crc32_scalar(rest, 16, 0));
}
#endif
