/* float32 products, AVX-512. */
#include "qk_isa.h"

#if QK_X86
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define ISA avx512
#define LANES 16
#define MOST 6
#define FUSED(acc, one, b) (vector)_mm512_fmadd_ps(_mm512_set1_ps(one), (__m512)(b), (__m512)(acc))
#include "qk_float_product.h"

#define CASE(R, V) case R: tile(t, m, 0, R, V); break;
#define ROWS(V) switch (rows) { CASE(1, V) CASE(2, V) CASE(3, V) CASE(4, V) CASE(5, V) CASE(6, V) }

TARGET void NAME(float_product_f32, ISA)(const qk_float_tile *t) {
    const int64_t tiles = (t->rows + MOST - 1) / MOST;
    int64_t m = 0;
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t rows = (t->rows - m + tiles - i - 1) / (tiles - i); /* as even as can be */
        switch (t->width) {
            case 16: ROWS(1) break;
            case 32: ROWS(2) break;
            case 48: ROWS(3) break;
            default: ROWS(4) break;
        }
        m += rows;
    }
}
#endif
