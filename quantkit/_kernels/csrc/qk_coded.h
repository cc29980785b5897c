/* The driver of quantizing with an account: codes, what they lose, and their CRC-32, in one pass over the values. */
#ifndef QK_CODED_H
#define QK_CODED_H

#include "qk_kernels.h"
#include "qk_types.h"

typedef struct {
    double signal, noise, most; /* see qk_loss; added to */
    int64_t crc;                /* CRC-32 of the codes so far; goes on */
} qk_account;

/* x and codes are contiguous [outer, channels, inner]; `parameters` is 1 for one scale and zero point, or `channels`. */
typedef struct {
    const char *x;
    qk_dtype dtype; /* float32, float16 or bfloat16 */
    char *codes;
    int is_signed;
    int64_t outer, channels, inner, parameters;
    const float *scale;
    const int32_t *zero_point;
    qk_account *account;
} qk_coded_call;

void qk_coded_run(const qk_coded_call *call);

/* CRC-32 of more bytes after those that gave `crc`. */
uint32_t qk_crc32(const void *x, int64_t n, uint32_t crc);

#endif
