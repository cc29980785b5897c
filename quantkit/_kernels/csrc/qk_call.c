#include "qk_call.h"

int qk_run_affine(const qk_call *call) { return qk_affine_run(&call->affine); }
int qk_run_copy(const qk_call *call) { return qk_copy_run(&call->copy); }
int qk_run_dynamic(const qk_call *call) { return qk_dynamic_run(&call->dynamic); }
int qk_run_range(const qk_call *call) { return qk_range_run(&call->statistics); }
int qk_run_histogram(const qk_call *call) { return qk_histogram_run(&call->statistics); }
int qk_run_batch(const qk_call *call) { return qk_matmul_batch_run(&call->batch); }

int qk_run_lookup(const qk_call *call) {
    qk_lookup_run(&call->lookup);
    return 0;
}

int qk_run_matmul(const qk_call *call) { return qk_matmul_run(&call->matmul); }
int qk_run_conv(const qk_call *call) { return qk_conv_run(&call->conv); }
int qk_run_resize(const qk_call *call) { return qk_resize_run(&call->resize); }
int qk_run_linear(const qk_call *call) { return qk_linear_run(&call->linear); }
int qk_run_rnn(const qk_call *call) { return qk_rnn_run(&call->rnn); }

int qk_run_coded(const qk_call *call) {
    qk_coded_run(&call->coded);
    return 0;
}
