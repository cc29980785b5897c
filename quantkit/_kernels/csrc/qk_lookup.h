/* The driver of lookup: any function of 8-bit codes is a table of 256 bytes, one for all or one a channel. */
#ifndef QK_LOOKUP_H
#define QK_LOOKUP_H

#include "qk_layout.h"

typedef struct {
    qk_layout layout; /* operand 0 is x, operand 1 is y */
    const uint8_t *x;
    uint8_t *y; /* x itself, or memory apart from it */
    const uint8_t *tables; /* 256 bytes; where layout.axis >= 0, 256 for each channel */
} qk_lookup_call;

void qk_lookup_run(const qk_lookup_call *call);

#endif
