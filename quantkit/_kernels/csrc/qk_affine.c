#include "qk_affine.h"

#include <stdlib.h>
#include <string.h>

#include "qk_cache.h"
#include "qk_dispatch.h"
#include "qk_memory.h"

#define CHUNK 1024               /* elements of a strided run that are gathered at a time */
#define TILE_ROWS 16             /* rows gathered together where x is contiguous across them: one cache line */
#define SHORT_RUN 16             /* runs of one channel below this length use a table of parameters instead */
#define LONGEST_PERIOD 8192      /* elements after which channel parameters repeat, for such a table */

int qk_affine_supported(qk_dtype x, qk_dtype y) {
    const int x_real = x == QK_F16 || x == QK_BF16 || x == QK_F32 || x == QK_F64;
    const int y_real = y == QK_F16 || y == QK_BF16 || y == QK_F32 || y == QK_F64;
    return x_real ? y == QK_U8 || y == QK_S8 : y_real;
}

static qk_affine_fn *kernel_for(qk_dtype x, qk_dtype y) {
    static const int16_t quantize[QK_DTYPE_COUNT][2] = {
        [QK_F16] = {QK_SLOT_quantize_f16_u8, QK_SLOT_quantize_f16_s8},
        [QK_BF16] = {QK_SLOT_quantize_bf16_u8, QK_SLOT_quantize_bf16_s8},
        [QK_F32] = {QK_SLOT_quantize_f32_u8, QK_SLOT_quantize_f32_s8},
        [QK_F64] = {QK_SLOT_quantize_f64_u8, QK_SLOT_quantize_f64_s8},
    };
    static const int16_t dequantize[3][QK_DTYPE_COUNT] = {
        [QK_U8] = {[QK_F16] = QK_SLOT_dequantize_u8_f16, [QK_BF16] = QK_SLOT_dequantize_u8_bf16,
                   [QK_F32] = QK_SLOT_dequantize_u8_f32, [QK_F64] = QK_SLOT_dequantize_u8_f64},
        [QK_S8] = {[QK_F16] = QK_SLOT_dequantize_s8_f16, [QK_BF16] = QK_SLOT_dequantize_s8_bf16,
                   [QK_F32] = QK_SLOT_dequantize_s8_f32, [QK_F64] = QK_SLOT_dequantize_s8_f64},
        [QK_I32] = {[QK_F16] = QK_SLOT_dequantize_i32_f16, [QK_BF16] = QK_SLOT_dequantize_i32_bf16,
                    [QK_F32] = QK_SLOT_dequantize_i32_f32, [QK_F64] = QK_SLOT_dequantize_i32_f64},
    };
    const int slot = y == QK_U8 || y == QK_S8 ? quantize[x][y] : dequantize[x][y];
    return (qk_affine_fn *)qk_table[slot];
}

/* One walk over the arrays: what stays the same, and where it stands. */
typedef struct {
    qk_affine_fn *kernel;
    int64_t x_size, y_size;
    int stream;
} walk;

static void advance(qk_affine *p, int64_t n) {
    if (!p->vector) return;
    p->scale += n;
    if (p->zero_point) p->zero_point += n;
    if (p->zero_point_f) p->zero_point_f += n;
}

/* One run of n elements at any strides; the parameters run along where they are a vector. */
static void run_1d(const walk *w, const char *x, int64_t x_stride, char *y, int64_t y_stride, int64_t n, qk_affine p) {
    const int packed_x = x_stride == w->x_size, packed_y = y_stride == w->y_size;
    if (packed_x && packed_y) {
        w->kernel(x, y, n, &p);
        return;
    }
    _Alignas(64) char x_chunk[CHUNK * 8], y_chunk[CHUNK * 8];
    p.stream &= packed_y;
    for (int64_t i = 0; i < n; i += CHUNK) {
        const int64_t now = n - i < CHUNK ? n - i : CHUNK;
        if (!packed_x) qk_copy_strided(x_chunk, w->x_size, x + i * x_stride, x_stride, now, w->x_size);
        w->kernel(packed_x ? x + i * x_stride : x_chunk, packed_y ? y + i * y_stride : y_chunk, now, &p);
        if (!packed_y) qk_copy_strided(y + i * y_stride, y_stride, y_chunk, w->y_size, now, w->y_size);
        advance(&p, now);
    }
}

/* x is contiguous down the rows, y along them: gather TILE_ROWS rows at once, so that each line of x is read once. */
static void run_transposed(const walk *w, const char *x, int64_t x_stride, char *y, int64_t y_stride, int64_t rows,
                           int64_t n, const qk_affine *p) {
    enum { COLUMNS = 256 };
    _Alignas(64) char tile[TILE_ROWS * COLUMNS * 8];
    const int64_t size = w->x_size;
    qk_affine own = *p;
    own.stream = 0;
    for (int64_t i = 0; i < n; i += COLUMNS, advance(&own, COLUMNS)) {
        const int64_t now = n - i < COLUMNS ? n - i : COLUMNS;
        for (int64_t c = 0; c < now; c++)
            qk_copy_strided(tile + c * size, COLUMNS * size, x + (i + c) * x_stride, size, rows, size);
        for (int64_t r = 0; r < rows; r++)
            w->kernel(tile + r * COLUMNS * size, y + r * y_stride + i * w->y_size, now, &own);
    }
}

/* Parameters of channel c, for a run within it. */
static qk_affine channel(const qk_affine_call *call, const walk *w, int64_t c) {
    if (!call->scale)
        return (qk_affine){.scale = &call->scale_value,
                           .zero_point = call->has_float_zero_point ? NULL : &call->zero_point_value,
                           .zero_point_f = call->has_float_zero_point ? &call->zero_point_f_value : NULL,
                           .stream = w->stream};
    return (qk_affine){.scale = call->scale + c,
                       .zero_point = call->zero_point ? call->zero_point + c : NULL,
                       .zero_point_f = call->zero_point_f ? call->zero_point_f + c : NULL,
                       .stream = w->stream};
}

/* Dimensions d.. of the layout; c is the channel once the walk is below its axis. */
static void walk_down(const qk_affine_call *call, const walk *w, int d, const char *x, char *y, int64_t c) {
    const qk_layout *l = &call->layout;
    const int last = l->ndim - 1;
    if (d >= last) {
        qk_affine p = channel(call, w, c);
        p.vector = l->axis == last && last >= 0;
        const int64_t n = last < 0 ? 1 : l->shape[last];
        run_1d(w, x, last < 0 ? w->x_size : l->strides[0][last], y, last < 0 ? w->y_size : l->strides[1][last], n, p);
        return;
    }
    const int64_t n = l->shape[d], x_step = l->strides[0][d], y_step = l->strides[1][d];
    const int transposed = d == last - 1 && d != l->axis && x_step == w->x_size && l->strides[0][last] != w->x_size &&
                           l->strides[1][last] == w->y_size;
    if (transposed) {
        qk_affine p = channel(call, w, c);
        p.vector = l->axis == last;
        for (int64_t i = 0; i < n; i += TILE_ROWS)
            run_transposed(w, x + i * x_step, l->strides[0][last], y + i * y_step, y_step,
                           n - i < TILE_ROWS ? n - i : TILE_ROWS, l->shape[last], &p);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        walk_down(call, w, d + 1, x + i * x_step, y + i * y_step, d == l->axis ? i : c);
}

/* The innermost dimensions are [outer, channels, inner] in one contiguous piece, and inner is short: repeat the
 * parameters over whole periods of channels * inner elements, so that the kernels run over long vectors of them.
 * Returns 1 when done, 0 when the layout is not like that, -1 without memory. */
static int run_periodic(const qk_affine_call *call, const walk *w) {
    const qk_layout *l = &call->layout;
    const int axis = l->axis, last = l->ndim - 1;
    if (axis < 1 || axis < last - 1 || l->ndim > 3 || (axis == last ? l->ndim > 2 : 0)) return 0;
    const int64_t inner = axis == last ? 1 : l->shape[last], channels = l->shape[axis], period = channels * inner;
    if (inner >= SHORT_RUN || period > LONGEST_PERIOD) return 0;
    if (l->strides[0][last] != w->x_size || l->strides[1][last] != w->y_size) return 0;
    for (int d = 0; d < last; d++)
        for (int k = 0; k < 2; k++)
            if (l->strides[k][d] != l->strides[k][d + 1] * l->shape[d + 1]) return 0;
    const int64_t total = period * l->shape[0];
    int64_t table = period * ((CHUNK + period - 1) / period);
    if (table > total) table = total;
    float *scale = malloc((size_t)table * 8);
    if (!scale) return -1;
    int32_t *zero_point = (int32_t *)(scale + table);
    for (int64_t i = 0; i < table; i++) {
        const int64_t c = i % period / inner;
        scale[i] = call->scale[c];
        memcpy(&zero_point[i], call->zero_point ? (const void *)&call->zero_point[c] : (const void *)&call->zero_point_f[c], 4);
    }
    const qk_affine p = {.scale = scale,
                         .zero_point = call->zero_point ? zero_point : NULL,
                         .zero_point_f = call->zero_point ? NULL : (const float *)zero_point,
                         .vector = 1,
                         .stream = w->stream};
    for (int64_t i = 0; i < total; i += table)
        w->kernel(call->x + i * w->x_size, call->y + i * w->y_size, total - i < table ? total - i : table, &p);
    free(scale);
    return 1;
}

/* Whether to write around the caches. Such a store costs memory bandwidth at once, and saves reading the line first
 * and pushing others out. Measured (docs/kernels.md): it pays once the output alone nearly fills the last level; and
 * already at half of that level in all where the output is the smaller side. */
static int goes_around_caches(int64_t read, int64_t written) {
    static int64_t cache; /* the same value whoever writes it first */
    if (!cache) cache = qk_last_level_cache();
    return written >= cache / 4 * 3 || (written < read && read + written >= cache / 2);
}

int qk_affine_run(const qk_affine_call *call) {
    const qk_layout *l = &call->layout;
    walk w = {.kernel = kernel_for(call->x_dtype, call->y_dtype),
              .x_size = qk_itemsize(call->x_dtype),
              .y_size = qk_itemsize(call->y_dtype)};
    int64_t n = 1;
    for (int d = 0; d < l->ndim; d++) n *= l->shape[d];
    w.stream = goes_around_caches(n * w.x_size, n * w.y_size);
    const int done = run_periodic(call, &w);
    if (done < 0) return -1;
    if (!done) walk_down(call, &w, 0, call->x, call->y, 0);
    return 0;
}
