/* A verb call: what to run, on which operands, with which parameters, in one struct that can be executed at once or
 * kept and executed later. Every kernel of quantkit runs through one. */
#ifndef QK_CALL_H
#define QK_CALL_H

#include "qk_affine.h"
#include "qk_coded.h"
#include "qk_conv.h"
#include "qk_copy.h"
#include "qk_dynamic.h"
#include "qk_linear.h"
#include "qk_lookup.h"
#include "qk_matmul.h"
#include "qk_resize.h"
#include "qk_rnn.h"
#include "qk_statistics.h"

typedef struct qk_call qk_call;

/* Returns 0; -1 without scratch memory; n > 0 where n values are not such that the verb could take them. */
typedef int qk_run_fn(const qk_call *call);

struct qk_call {
    qk_run_fn *run;
    const char *fault; /* what to say of those n values, with one %d */
    union {
        qk_affine_call affine;
        qk_copy_call copy;
        qk_dynamic_call dynamic;
        qk_statistics_call statistics;
        qk_lookup_call lookup;
        qk_matmul_call matmul;
        qk_matmul_batch batch;
        qk_conv_call conv;
        qk_coded_call coded;
        qk_resize_call resize;
        qk_linear_call linear;
        qk_rnn_call rnn;
    };
};

qk_run_fn qk_run_affine, qk_run_copy, qk_run_dynamic, qk_run_range, qk_run_histogram, qk_run_lookup,
    qk_run_matmul, qk_run_batch, qk_run_conv, qk_run_coded, qk_run_resize, qk_run_linear, qk_run_rnn;

#endif
