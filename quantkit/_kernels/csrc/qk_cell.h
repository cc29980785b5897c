/* The step of a cell in plain C, compiled once for each instruction set: include it with TARGET and ISA defined. No
 * operation may be fused or reordered, so that every compilation gives the same bits.
 *
 * The exponential is Cody and Waite's reduction with the polynomial of Cephes' expf, tanh near 0 the polynomial of its
 * tanhf (S. L. Moshier, Methods and Programs for Mathematical Functions, 1989). docs/rnn.md has the measured errors. */
#include <math.h>
#include <string.h>

#include "qk_kernels.h"

#define INLINE TARGET static inline __attribute__((always_inline))
#define BLOCK 64 /* values that go through the gates together, in the first-level cache */

/* Whole blocks have loops of a length that the compiler knows. */
#define WHOLE_OR_NOT(n, run) if ((n) == BLOCK) { run(BLOCK); } else { run(n); }

/* exp(x) of x <= 0; below -87 that of -87. NaN stays. */
INLINE float exp_negative(float x) {
    x = x < -87.0f ? -87.0f : x;
    /* Adding the magic number rounds to an integer, whose bits lie lowest then, with the exponent's bias of 127. */
    const float magic = 0x1.8p23f + 127.0f, t = x * 0x1.715476p+0f + magic, n = t - magic;
    float r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    uint32_t bits;
    float power;
    memcpy(&bits, &t, 4);
    bits <<= 23;
    memcpy(&power, &bits, 4);
    return p * power;
}

INLINE float sigmoid(float x) {
    const float e = exp_negative(-fabsf(x));
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}

INLINE float tangent(float x) {
    const float a = fabsf(x), e = exp_negative(-2.0f * a), far = (1.0f - e) / (1.0f + e), z = x * x;
    float p = -5.70498872745e-3f * z + 2.06390887954e-2f;
    p = p * z + -5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z + -3.33332819422e-1f;
    const float near = p * z * x + x;
    return a < 0.625f ? near : copysignf(far, x);
}

/* log(1 + e) of e in [0, 1], as twice the series of artanh(e / (2 + e)). */
INLINE float log1p_unit(float e) {
    const float s = e / (2.0f + e), z = s * s;
    float p = 0x1.111112p-4f * z + 0x1.3b13b2p-4f; /* 1/15, 1/13 */
    p = p * z + 0x1.745d18p-4f;                    /* 1/11 */
    p = p * z + 0x1.c71c72p-4f;                    /* 1/9 */
    p = p * z + 0x1.24924ap-3f;                    /* 1/7 */
    p = p * z + 0x1.99999ap-3f;                    /* 1/5 */
    p = p * z + 0x1.555556p-2f;                    /* 1/3 */
    return 2.0f * (p * z * s + s);
}

INLINE float elu(float x, float alpha) {
    const float t = tangent(0.5f * (x < 0 ? x : 0.0f)), below = alpha * (2.0f * t / (1.0f - t));
    return x < 0 ? below : x;
}

INLINE float hard_sigmoid(float x, float alpha, float beta) {
    const float y = alpha * x + beta, z = y < 0 ? 0.0f : y;
    return z > 1 ? 1.0f : z;
}

/* v[i] = the activation of v[i], clipped. */
#define EACH(value)                                       \
    for (int64_t i = 0; i < n; i++) {                     \
        float x = v[i];                                   \
        x = x < -clip ? -clip : x;                        \
        x = x > clip ? clip : x;                          \
        v[i] = (value);                                   \
    }                                                     \
    break;

INLINE void activate_n(const qk_activation *a, float clip, float *restrict v, int64_t n) {
    const float alpha = a->alpha, beta = a->beta;
    switch (a->kind) {
        case QK_RELU: EACH(x < 0 ? 0.0f : x)
        case QK_TANH: EACH(tangent(x))
        case QK_SIGMOID: EACH(sigmoid(x))
        case QK_AFFINE: EACH(alpha * x + beta)
        case QK_LEAKY_RELU: EACH(x < 0 ? alpha * x : x)
        case QK_THRESHOLDED_RELU: EACH(x < alpha ? 0.0f : x)
        case QK_SCALED_TANH: EACH(alpha * tangent(beta * x))
        case QK_HARD_SIGMOID: EACH(hard_sigmoid(x, alpha, beta))
        case QK_ELU: EACH(elu(x, alpha))
        case QK_SOFTSIGN: EACH(x / (1.0f + fabsf(x)))
        default: EACH((x < 0 ? 0.0f : x) + log1p_unit(exp_negative(-fabsf(x))))
    }
}

TARGET static __attribute__((noinline)) void activate(const qk_activation *a, float clip, float *restrict v, int64_t n) {
#define RUN(n) activate_n(a, clip, v, n)
    WHOLE_OR_NOT(n, RUN)
#undef RUN
}

/* The half of a gate, its value `at`. */
INLINE float half_of(const qk_half_gates *h, int64_t at) {
    return h->real ? h->real[at] : (float)h->sums[at] * (h->row_scale * h->scale[at]);
}

INLINE void half_gates(const qk_half_gates *h, int64_t at, int64_t n, float *restrict v) {
    for (int64_t i = 0; i < n; i++) v[i] = half_of(h, at + i);
}

/* (1), from value `first` on. Loops of their own for the two usual cases. */
INLINE void gate_n(const qk_half_gates *x, const qk_half_gates *h, const float *bias, int64_t first, int64_t n,
                   float *restrict v) {
    const qk_half_gates xs = *x, hs = *h; /* copies, which the stores cannot change */
    if (xs.real && hs.real)
        for (int64_t i = 0; i < n; i++) v[i] = (xs.real[first + i] + bias[i]) + hs.real[first + i];
    else if (!xs.real && !hs.real)
        for (int64_t i = 0; i < n; i++)
            v[i] = ((float)xs.sums[first + i] * (xs.row_scale * xs.scale[first + i]) + bias[i]) +
                   (float)hs.sums[first + i] * (hs.row_scale * hs.scale[first + i]);
    else
        for (int64_t i = 0; i < n; i++) v[i] = (half_of(&xs, first + i) + bias[i]) + half_of(&hs, first + i);
}

/* (1) for values [at, at + n) of gate g. */
TARGET static __attribute__((noinline)) void gate(const qk_cell_step *s, int64_t g, int64_t at, int64_t n, float *restrict v) {
    const int64_t first = g * s->hidden + at;
#define RUN(n) gate_n(&s->x, &s->h, s->bias + first, first, n, v)
    WHOLE_OR_NOT(n, RUN)
#undef RUN
}

#define BLOCKS(s)                                                                                 \
    for (int64_t at = 0, n; n = (s)->hidden - at < BLOCK ? (s)->hidden - at : BLOCK, at < (s)->hidden; at += n)

#define NAME_(slot, isa) qk_##slot##_##isa
#define NAME(slot, isa) NAME_(slot, isa)

TARGET void NAME(cell_rnn, ISA)(const qk_cell_step *s) {
    BLOCKS(s) {
        gate(s, 0, at, n, s->state + at);
        activate(&s->activation[0], s->clip, s->state + at, n);
    }
}

INLINE void lstm_n(const qk_cell_step *s, int64_t at, int64_t n) {
    _Alignas(64) float in[BLOCK], out[BLOCK], forget[BLOCK], new[BLOCK];
    float *restrict c = s->cell + at, *restrict h = s->state + at;
    const float *peephole = s->peephole ? s->peephole + at : NULL;
    gate(s, 0, at, n, in);
    if (peephole)
        for (int64_t i = 0; i < n; i++) in[i] = in[i] + peephole[i] * c[i];
    activate(&s->activation[0], s->clip, in, n);
    if (s->input_forget) {
        for (int64_t i = 0; i < n; i++) forget[i] = 1.0f - in[i];
    } else {
        gate(s, 2, at, n, forget);
        if (peephole)
            for (int64_t i = 0; i < n; i++) forget[i] = forget[i] + peephole[2 * s->hidden + i] * c[i];
        activate(&s->activation[0], s->clip, forget, n);
    }
    gate(s, 3, at, n, new);
    activate(&s->activation[1], s->clip, new, n);
    for (int64_t i = 0; i < n; i++) c[i] = forget[i] * c[i] + in[i] * new[i];
    gate(s, 1, at, n, out);
    if (peephole)
        for (int64_t i = 0; i < n; i++) out[i] = out[i] + peephole[s->hidden + i] * c[i];
    activate(&s->activation[0], s->clip, out, n);
    memcpy(new, c, (size_t)n * 4);
    activate(&s->activation[2], INFINITY, new, n); /* the state is not clipped, as in onnxruntime */
    for (int64_t i = 0; i < n; i++) h[i] = out[i] * new[i];
}

TARGET void NAME(cell_lstm, ISA)(const qk_cell_step *s) {
    BLOCKS(s) {
#define RUN(n) lstm_n(s, at, n)
        WHOLE_OR_NOT(n, RUN)
#undef RUN
    }
}

/* z and r of values [at, at + n). */
TARGET static void gru_gates(const qk_cell_step *s, int64_t at, int64_t n, float *z, float *r) {
    gate(s, 0, at, n, z);
    activate(&s->activation[0], s->clip, z, n);
    gate(s, 1, at, n, r);
    activate(&s->activation[0], s->clip, r, n);
}

INLINE void gru_state(const float *restrict z, const float *restrict new, float *restrict h, int64_t n) {
    for (int64_t i = 0; i < n; i++) h[i] = (1.0f - z[i]) * new[i] + z[i] * h[i];
}

TARGET void NAME(cell_gru, ISA)(const qk_cell_step *s) {
    BLOCKS(s) {
        _Alignas(64) float z[BLOCK], r[BLOCK], new[BLOCK];
        float *h = s->state + at;
        if (s->part == QK_STEP_WHOLE) {
            float right[BLOCK];
            const float *bias = s->bias + 2 * s->hidden + at, *bias_h = s->bias_h + at;
            gru_gates(s, at, n, z, r);
            half_gates(&s->x, 2 * s->hidden + at, n, new);
            half_gates(&s->h, 2 * s->hidden + at, n, right);
            for (int64_t i = 0; i < n; i++) new[i] = (new[i] + bias[i]) + r[i] * (right[i] + bias_h[i]);
            activate(&s->activation[1], s->clip, new, n);
            gru_state(z, new, h, n);
        } else if (s->part == QK_STEP_GATES) {
            float *restrict reset = s->between + s->hidden + at;
            gru_gates(s, at, n, s->between + at, r);
            for (int64_t i = 0; i < n; i++) reset[i] = r[i] * h[i];
        } else {
            gate(s, 2, at, n, new);
            activate(&s->activation[1], s->clip, new, n);
            gru_state(s->between + at, new, h, n);
        }
    }
}
