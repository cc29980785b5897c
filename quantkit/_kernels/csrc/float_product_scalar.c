/* float32 products, portable. fmaf is a function where the compiler may not take the instruction for granted. */
#include <math.h>

#define FUSED(acc, one, b) (vector){fmaf(one, (b)[0], (acc)[0]), fmaf(one, (b)[1], (acc)[1]), \
                                    fmaf(one, (b)[2], (acc)[2]), fmaf(one, (b)[3], (acc)[3])}
#define TARGET
#define ISA scalar
#define LANES 4
#define MOST 2
#include "qk_float_product.h"

void NAME(float_product_f32, ISA)(const qk_float_tile *t) {
    for (int column = 0; column < t->width; column += 16) {
        int64_t m = 0;
        for (; m + 2 <= t->rows; m += 2) tile(t, m, column, 2, 4);
        if (m < t->rows) tile(t, m, column, 1, 4);
    }
}
