/* float32 rows times a panel, compiled once for each instruction set: include it with TARGET, ISA, LANES (floats a vector),
 * MOST (rows of a tile) and FUSED(acc, one, b), acc + one * b rounded once, defined. Lanes are columns, each of which adds k
 * after k: the same bits for any LANES. */
#include "qk_kernels.h"

#define INLINE TARGET static inline __attribute__((always_inline))

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* R rows by V vectors from column `column` on; R and V are literals. */
INLINE void tile(const qk_float_tile *t, int64_t m, int column, int R, int V) {
    vector acc[MOST * 4] = {{0}};
    const float *b = t->b + column;
    const float *a = t->a + m * t->a_stride;
    for (int64_t k = 0; k < t->k; k++, b += t->width) {
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const float one = a[r * t->a_stride + k];
#pragma GCC unroll 8
            for (int v = 0; v < V; v++) acc[r * V + v] = FUSED(acc[r * V + v], one, *(const vector *)(b + LANES * v));
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) *(vector *)(t->c + (m + r) * t->c_stride + column + LANES * v) = acc[r * V + v];
}

#define NAME_(slot, isa) qk_##slot##_##isa
#define NAME(slot, isa) NAME_(slot, isa)
