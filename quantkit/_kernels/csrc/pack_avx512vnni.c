/* Packing a panel, AVX-512 VNNI: 64 columns of 4 rows at a time become a group; the multiply-add of the products takes the
 * column sums. */
#include "qk_isa.h"

#if QK_X86
#include <immintrin.h>

#include "qk_kernels.h"

#define TARGET __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#include "qk_pack.h"

#define AHEAD 256 /* bytes: the same rows of the panels to come, which no hardware foresees where rows are long */

TARGET void qk_pack_panel_avx512vnni(qk_panel *p) {
    if (p->columns != QK_PANEL || p->column_stride != 1) {
        qk_pack_panel_avx2(p);
        return;
    }
    const int64_t groups = qk_groups(p->k), whole = p->k / 4;
    const __m512i flip = _mm512_set1_epi8((char)p->flip), ones = _mm512_set1_epi8(1);
    __m512i low = _mm512_setzero_si512(), high = low, sum[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) sum[v] = _mm512_loadu_si512(p->colsum + 16 * v);
    for (int64_t g = 0; g < whole; g++) {
        __m512i row[4], q[4], out[4];
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) {
            const char *b = p->b + (4 * g + r) * p->row_stride;
            _mm_prefetch(b + AHEAD, _MM_HINT_T1);
            row[r] = _mm512_xor_si512(_mm512_loadu_si512(b), flip);
            low = _mm512_min_epi8(low, row[r]);
            high = _mm512_max_epi8(high, row[r]);
        }
        const __m512i a = _mm512_unpacklo_epi8(row[0], row[1]), b = _mm512_unpackhi_epi8(row[0], row[1]);
        const __m512i c = _mm512_unpacklo_epi8(row[2], row[3]), d = _mm512_unpackhi_epi8(row[2], row[3]);
        q[0] = _mm512_unpacklo_epi16(a, c), q[1] = _mm512_unpackhi_epi16(a, c);
        q[2] = _mm512_unpacklo_epi16(b, d), q[3] = _mm512_unpackhi_epi16(b, d);
        /* Lane l of q[i] has columns 16 l + 4 i on: a transpose of 4 by 4 lanes. */
        const __m512i s = _mm512_shuffle_i32x4(q[0], q[1], 0x44), t = _mm512_shuffle_i32x4(q[2], q[3], 0x44);
        const __m512i u = _mm512_shuffle_i32x4(q[0], q[1], 0xee), w = _mm512_shuffle_i32x4(q[2], q[3], 0xee);
        out[0] = _mm512_shuffle_i32x4(s, t, 0x88), out[1] = _mm512_shuffle_i32x4(s, t, 0xdd);
        out[2] = _mm512_shuffle_i32x4(u, w, 0x88), out[3] = _mm512_shuffle_i32x4(u, w, 0xdd);
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            sum[v] = _mm512_dpbusd_epi32(sum[v], ones, out[v]);
            _mm512_storeu_si512(p->out + 256 * g + 64 * v, out[v]);
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) _mm512_storeu_si512(p->colsum + 16 * v, sum[v]);
    int8_t lows[64], highs[64];
    _mm512_storeu_si512(lows, low);
    _mm512_storeu_si512(highs, high);
    for (int i = 0; i < 64; i++) {
        p->low = lows[i] < p->low ? lows[i] : p->low;
        p->high = highs[i] > p->high ? highs[i] : p->high;
    }
    if (whole < groups) qk_pack_columns(p, whole, 0);
}
#endif
