/* Lookup, AVX-512 VBMI. */
#include "qk_isa.h"

#if QK_X86
#include "qk_kernels.h"

#define TARGET __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi")))
#define INLINE static inline __attribute__((always_inline)) TARGET

#include "qk_lookup_vbmi.h"

TARGET void qk_lookup_u8_avx512vbmi(const uint8_t *x, uint8_t *y, int64_t n, const uint8_t *table) {
    int64_t i = 0;
    for (; i + 256 <= n; i += 256) {
        __m512i q[4];
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) q[v] = lookup64(_mm512_loadu_si512(x + i + 64 * v), table);
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) _mm512_storeu_si512(y + i + 64 * v, q[v]);
    }
    for (; i < n; i += 64) {
        const __mmask64 left = n - i >= 64 ? ~0ull : ((__mmask64)1 << (n - i)) - 1;
        _mm512_mask_storeu_epi8(y + i, left, lookup64(_mm512_maskz_loadu_epi8(left, x + i), table));
    }
}
#endif
