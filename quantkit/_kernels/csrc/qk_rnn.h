/* Recurrent layers: the float32 product, the step of a cell, and the driver that walks through time.
 *
 * With x_t the input of a step, h and c the state before it, W and R the weights of the gates, every gate has
 *
 *   pre = (x_t W + b) + h R                                                                          (1)
 *
 * each operation rounded once, in this order. Products of float32 add k = 0, 1, 2, ... one after the other, beginning
 * with 0, each by a fused multiply-add; those of codes are exact integers, taken to float32 and scaled once by f32(row's scale * column's scale).  */
#ifndef QK_RNN_H
#define QK_RNN_H

#include <stdint.h>

#include "qk_matmul.h"

/* a[rows][k] times one panel of packed float32: panels of 64 columns as those of codes, k after k. */
typedef struct {
    const float *a, *b;
    int64_t a_stride, rows, k; /* strides in elements */
    int width;                 /* of the panel: 16, 32, 48 or 64; all of it is written */
    float *c;
    int64_t c_stride;
} qk_float_tile;

typedef void qk_float_product_fn(const qk_float_tile *t);

/* Put n rows of w, each k contiguous values `stride` elements apart, in that order; `packed` has qk_padded_columns(n) * k. */
void qk_pack_floats(float *packed, const float *w, int64_t stride, int64_t k, int64_t n);

typedef enum {
    QK_RELU, QK_TANH, QK_SIGMOID, QK_AFFINE, QK_LEAKY_RELU, QK_THRESHOLDED_RELU, QK_SCALED_TANH, QK_HARD_SIGMOID,
    QK_ELU, QK_SOFTSIGN, QK_SOFTPLUS, QK_ACTIVATIONS
} qk_activation_kind;

typedef struct {
    int kind;
    float alpha, beta;
} qk_activation;

/* One half of (1) for one row: float32, or integers with their scales. Gates lie `hidden` apart. */
typedef struct {
    const float *real;
    const int32_t *sums; /* where real is NULL */
    const float *scale;  /* a column */
    float row_scale;
} qk_half_gates;

typedef enum { QK_STEP_WHOLE, QK_STEP_GATES, QK_STEP_STATE } qk_step_part;

/* One row's step. A GRU whose reset comes before the product takes it in two parts: GATES leaves z and r * h in
 * `between`, STATE takes z from there and h R of the last gate. */
typedef struct {
    int64_t hidden;
    qk_half_gates x, h;
    const float *bias;         /* a column: Wb + Rb; for the last gate of a GRU with linear_before_reset Wb alone */
    const float *bias_h;       /* hidden: Rb of that gate; or NULL */
    const float *peephole;     /* 3 * hidden: i, o, f; or NULL */
    const qk_activation *activation;
    float clip;                /* of what enters an activation; INFINITY for none */
    int input_forget, linear_before_reset, part;
    float *state, *cell;       /* hidden: h and c, before and after */
    float *between;            /* 2 * hidden */
} qk_cell_step;

typedef void qk_cell_fn(const qk_cell_step *s);

/* Weights of one direction: codes with a scale and zero point a column, or packed float32. */
typedef struct {
    int64_t k, n;
    const qk_packed_matmul *codes;
    const float *scale;  /* padded columns */
    const int32_t *zero; /* of b', padded columns; NULL where all are 0 */
    const float *values; /* where codes is NULL */
} qk_rnn_weights;

typedef struct {
    qk_rnn_weights w, r;
    const float *bias, *bias_h, *peephole; /* as in qk_cell_step */
    qk_activation activation[3];
    int reverse;
} qk_rnn_direction;

typedef enum { QK_CELL_RNN, QK_CELL_LSTM, QK_CELL_GRU } qk_cell;

/* Strides in bytes: of time, batch, direction, and along the values. State and results are contiguous along the values. */
typedef struct {
    int cell, linear_before_reset, input_forget;
    float clip;
    int64_t seq, batch, input, hidden;
    int directions;
    const qk_rnn_direction *direction;
    const char *x, *h0, *c0; /* h0, c0: NULL for zeros */
    int64_t x_t, x_b, x_i, h0_d, h0_b, c0_d, c0_b;
    const int32_t *lengths;  /* a row of the batch, 0 to seq; or NULL */
    char *y, *y_h, *y_c;     /* y_c of LSTM */
    int64_t y_t, y_d, y_b, yh_d, yh_b, yc_d, yc_b;
    int threads;
} qk_rnn_call;

/* Returns 0, -1 without scratch memory, or how many values could not be quantized for weights of codes because they were
 * NaN or infinite. */
int qk_rnn_run(const qk_rnn_call *call);

#endif
