/* CRC-32 as in zip and png (reflected, polynomial 0xEDB88320), portable: 8 bytes a step through 8 tables. */
#include "qk_kernels.h"

static uint32_t tables[8][256];

__attribute__((constructor)) static void make_tables(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0xEDB88320u : c >> 1;
        tables[0][i] = c;
    }
    for (int t = 1; t < 8; t++)
        for (int i = 0; i < 256; i++) tables[t][i] = tables[t - 1][i] >> 8 ^ tables[0][tables[t - 1][i] & 255];
}

uint32_t qk_crc32_scalar(const void *x, int64_t n, uint32_t state) {
    const uint8_t *p = x;
    for (; n >= 8; n -= 8, p += 8) {
        const uint32_t low = state ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        state = tables[7][low & 255] ^ tables[6][low >> 8 & 255] ^ tables[5][low >> 16 & 255] ^ tables[4][low >> 24] ^
                tables[3][p[4]] ^ tables[2][p[5]] ^ tables[1][p[6]] ^ tables[0][p[7]];
    }
    for (; n > 0; n--, p++) state = state >> 8 ^ tables[0][(state ^ *p) & 255];
    return state;
}
