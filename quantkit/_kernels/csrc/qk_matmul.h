/* Integer matrix products: the packed right operand, the epilogue, the micro-kernel's tile and the driver.
 *
 * y[m, n] = sum over k of (a[m, k] - a_zero[m]) * (b[k, n] - b_zero[n])                                       (1)
 *
 * The inner loops multiply unsigned by signed bytes and know no zero points. With a' = a (+ 128 where a is signed),
 * b' = b (- 128 where b is unsigned), and the zero points moved along,
 *
 * y = sum a' b'  - a_zero[m] * colsum[n]  - b_zero[n] * (rowsum[m] - K * a_zero[m])                           (2)
 *
 * where colsum[n] is the sum of b' over k, known at packing, and rowsum[m] that of a' over k. All of it wraps in int32,
 * so (2) equals (1) exactly modulo 2^32. */
#ifndef QK_MATMUL_H
#define QK_MATMUL_H

#include <stdint.h>

#define QK_PANEL 64 /* columns of a full panel */

/* b', packed: panels of 64 columns (the last one as many times 16 as it needs); within a panel groups of 4 rows of b',
 * each group one column after the other, 4 bytes a column. What is beyond K and N is zero. */
typedef struct {
    int64_t k, n;
    int8_t *data;
    int32_t *colsum; /* one a column */
    int half_range;  /* whether all of b' lies in [-64, 63], where sums of two products fit 16 bits */
} qk_packed_matmul;

/* One panel on its way into that form: k rows of b from its first column on; colsum begins at 0. */
typedef struct {
    const char *b;
    int64_t row_stride, column_stride, k;
    int columns, width; /* that exist, and of the panel */
    uint8_t flip;       /* 0x80 where b is unsigned */
    int8_t *out;
    int32_t *colsum;
    int low, high; /* bounds of b' so far */
} qk_panel;

typedef void qk_pack_fn(qk_panel *p);

static inline int64_t qk_groups(int64_t k) { return (k + 3) / 4; }
static inline int64_t qk_padded_columns(int64_t n) { return (n + 15) / 16 * 16; }
static inline int64_t qk_packed_bytes(int64_t k, int64_t n) { return qk_groups(k) * 4 * qk_padded_columns(n); }

typedef enum { QK_OUT_I32, QK_OUT_U8, QK_OUT_S8, QK_OUT_F32 } qk_out;

/* What happens to a finished accumulator. Arrays with one value a column start at the tile's first column and are as
 * long as its padded width, since kernels load them 16 at a time. */
typedef struct {
    qk_out out;
    const int32_t *start;  /* a column: where accumulators begin: integer bias and every term of (2) without m; or NULL */
    const int32_t *row;    /* a row: added, times `b_zero` of the column; or NULL */
    const int32_t *b_zero; /* a column, with `row` */
    const int32_t *a_zero; /* a row: what its zero point is less than the one in `start`, times `colsum`; or NULL */
    const int32_t *colsum; /* a column, with `a_zero` */
    const float *scale;    /* a column: multiplier of requantize, or factor of a float32 output */
    const float *bias;     /* a column: added to a float32 output; or NULL */
    int32_t zero_point;    /* of the output codes */
    int32_t low, high;     /* bounds of the output codes: the clamp of an activation */
    const uint8_t *table;  /* 256 codes that replace the output codes, read by their byte; or NULL */
    const uint8_t *residual; /* codes to add after requantizing, as QLinearAdd; or NULL */
    int64_t residual_stride; /* bytes from row to row */
    float own_ratio, residual_ratio;
    int32_t own_zero_point, residual_zero_point, residual_is_signed; /* zero_point is then that of the sum */
} qk_epilogue;

/* All rows of one panel: c[rows][columns] = a'[rows][k] times the panel. A row of a' may come in `taps` pieces of k bytes
 * that lie anywhere, as those of a convolution do; the panel then holds the groups of one tap after those of another. */
typedef struct {
    const uint8_t *a; /* piece s of row r: a + s * a_piece_stride + r * a_stride, when `at` is NULL */
    int64_t a_stride, a_piece_stride, rows, k;
    const uint8_t *const *at; /* piece s of row r: at[s * at_stride + r] + offset */
    int64_t at_stride, offset, taps;
    const int8_t *b;
    int width, columns; /* of the panel as packed, and those that exist */
    int half_range;     /* of the packed operand */
    void *c;
    int64_t c_stride; /* bytes */
    qk_epilogue e;
} qk_matmul_tile;

static inline const uint8_t *qk_tile_row(const qk_matmul_tile *t, int64_t tap, int64_t row) {
    return t->at ? t->at[tap * t->at_stride + row] + t->offset : t->a + tap * t->a_piece_stride + row * t->a_stride;
}

typedef void qk_matmul_fn(const qk_matmul_tile *t);

/* The sum of n bytes. */
uint32_t qk_sum_bytes(const uint8_t *a, int64_t n);

/* Pack b[k][n] of any strides; `flip` says that b is unsigned and 128 is taken off. The arrays are the caller's. */
void qk_pack_matmul(qk_packed_matmul *packed, const char *b, int64_t row_stride, int64_t column_stride, int flip);

/* One product. The epilogue's arrays cover all columns, its row arrays all rows; `row` is made here from `b_zero`. */
typedef struct {
    const uint8_t *a;
    int64_t a_stride, a_column_stride, m;
    int flip_a; /* a is signed: 128 is added on the way */
    int32_t a_zero_point; /* of a', as it entered e.start; a row's own is less by e.a_zero */
    const qk_packed_matmul *b;
    void *c;
    int64_t c_stride;
    qk_epilogue e;
    int threads;
} qk_matmul_call;

/* Returns 0, or -1 without scratch memory. */
int qk_matmul_run(const qk_matmul_call *call);

/* Many products of one shape, whose right operands are packed on the way. `one` says what they share; its b has k, n and
 * no data, its e.start is NULL. */
typedef struct {
    qk_matmul_call one;
    int64_t count;
    const int64_t *a_offsets, *b_offsets; /* bytes from one.a and b, one a product */
    int64_t c_offset;                     /* bytes from product to product */
    const char *b;
    int64_t b_row_stride, b_column_stride;
    int flip_b;
} qk_matmul_batch;

/* Returns 0, or -1 without scratch memory. */
int qk_matmul_batch_run(const qk_matmul_batch *batch);

#endif
