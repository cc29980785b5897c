/* float32 products, AVX2. */
#include "qk_isa.h"

#if QK_X86
#include <immintrin.h>

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define ISA avx2
#define LANES 8
#define MOST 6
#define FUSED(acc, one, b) (vector)_mm256_fmadd_ps(_mm256_set1_ps(one), (__m256)(b), (__m256)(acc))
#include "qk_float_product.h"

#define CASE(R) case R: tile(t, m, column, R, 2); break;

TARGET void NAME(float_product_f32, ISA)(const qk_float_tile *t) {
    const int64_t tiles = (t->rows + MOST - 1) / MOST;
    int64_t m = 0;
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t rows = (t->rows - m + tiles - i - 1) / (tiles - i); /* as even as can be */
        int column = 0;
        if (rows == 1 && t->width == QK_PANEL) { /* the panel as it lies */
            tile(t, m, 0, 1, 8);
            column = QK_PANEL;
        }
        for (; column < t->width; column += 16)
            switch (rows) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) }
        m += rows;
    }
}
#endif
