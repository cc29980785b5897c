/* Lookup, portable. */
#include "qk_kernels.h"

void qk_lookup_u8_scalar(const uint8_t *x, uint8_t *y, int64_t n, const uint8_t *table) {
    for (int64_t i = 0; i < n; i++) y[i] = table[x[i]];
}
