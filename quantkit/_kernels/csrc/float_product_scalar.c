/* float32 products, portable: vectors of 4 in the registers that every 64-bit CPU has. */
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
