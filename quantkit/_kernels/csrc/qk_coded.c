#include "qk_coded.h"

#include "qk_dispatch.h"

#define CHUNK 4096   /* elements at a time: values and codes stay in the first cache between the passes */
#define LONG_RUN 64  /* runs of one channel from this length on are passed with its parameters alone */

#define KERNEL(slot, family) ((qk_##family##_fn *)qk_table[QK_SLOT_##slot])

uint32_t qk_crc32(const void *x, int64_t n, uint32_t crc) { return ~KERNEL(crc32, crc32)(x, n, ~crc); }

/* At most CHUNK elements that start at `at`. */
static void code(const qk_coded_call *call, int64_t at, int64_t n, const qk_affine *p, qk_loss *loss) {
    float values[CHUNK];
    const float *x = (const float *)call->x + at;
    char *codes = call->codes + at;
    if (call->dtype != QK_F32) {
        const char *half = call->x + 2 * at;
        if (call->dtype == QK_F16) KERNEL(widen_f16_f32, widen)(half, values, n);
        else KERNEL(widen_bf16_f32, widen)(half, values, n);
        x = values;
    }
    (call->is_signed ? KERNEL(quantize_f32_s8, affine) : KERNEL(quantize_f32_u8, affine))(x, codes, n, p);
    (call->is_signed ? KERNEL(error_s8, error) : KERNEL(error_u8, error))(x, codes, n, p, loss);
}

/* Elements of one channel. */
static void code_run(const qk_coded_call *call, int64_t at, int64_t n, int64_t channel, qk_loss *loss) {
    const qk_affine p = {.scale = call->scale + channel, .zero_point = call->zero_point + channel};
    for (int64_t i = 0; i < n; i += CHUNK) code(call, at + i, n - i < CHUNK ? n - i : CHUNK, &p, loss);
}

/* Short runs: each element has its parameters beside it. */
static void code_mixed(const qk_coded_call *call, int64_t total, qk_loss *loss) {
    float scale[CHUNK];
    int32_t zero_point[CHUNK];
    const qk_affine p = {.scale = scale, .zero_point = zero_point, .vector = 1};
    int64_t channel = 0, left = call->inner;
    for (int64_t at = 0; at < total; at += CHUNK) {
        const int64_t n = total - at < CHUNK ? total - at : CHUNK;
        for (int64_t i = 0; i < n; i++) {
            scale[i] = call->scale[channel];
            zero_point[i] = call->zero_point[channel];
            if (--left) continue;
            left = call->inner;
            if (++channel == call->channels) channel = 0;
        }
        code(call, at, n, &p, loss);
    }
}

void qk_coded_run(const qk_coded_call *call) {
    const int64_t runs = call->outer * call->channels, total = runs * call->inner;
    qk_account *account = call->account;
    qk_loss loss = {0};
    if (call->parameters == 1) code_run(call, 0, total, 0, &loss);
    else if (call->inner < LONG_RUN) code_mixed(call, total, &loss);
    else
        for (int64_t r = 0; r < runs; r++) code_run(call, r * call->inner, call->inner, r % call->channels, &loss);
    account->signal += loss.signal;
    account->noise += loss.noise;
    account->most = loss.most > account->most ? loss.most : account->most;
    account->crc = qk_crc32(call->codes, total, (uint32_t)account->crc);
}
