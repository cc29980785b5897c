#include "qk_matmul.h"

#include <stdlib.h>
#include <string.h>

#include "qk_dispatch.h"
#include "qk_pool.h"

#define BLOCK_BYTES (192 << 10)  /* of `a` that one pass over the panels keeps in the second-level cache */
#define WORTH_SHARING (1 << 18)  /* products below so many multiplications stay on one thread */

/* Four rows of b become one group. */
static void pack_group(int8_t *out, const char *b, int64_t row_stride, int64_t column_stride, int rows, int64_t columns,
                       uint8_t flip) {
    for (int j = 0; j < 4; j++) {
        const char *row = b + j * row_stride;
        if (j >= rows)
            for (int64_t n = 0; n < columns; n++) out[4 * n + j] = 0;
        else if (column_stride == 1)
            for (int64_t n = 0; n < columns; n++) out[4 * n + j] = (int8_t)((uint8_t)row[n] ^ flip);
        else
            for (int64_t n = 0; n < columns; n++) out[4 * n + j] = (int8_t)((uint8_t)row[n * column_stride] ^ flip);
    }
}

void qk_pack_matmul(qk_packed_matmul *packed, const char *b, int64_t row_stride, int64_t column_stride, int flip) {
    const int64_t k = packed->k, n = packed->n, groups = qk_groups(k), padded = qk_padded_columns(n);
    memset(packed->colsum, 0, (size_t)padded * 4);
    for (int64_t first = 0; first < n; first += QK_PANEL) {
        const int64_t columns = n - first < QK_PANEL ? n - first : QK_PANEL;
        const int64_t width = padded - first < QK_PANEL ? padded - first : QK_PANEL;
        int8_t *out = packed->data + first * groups * 4;
        int32_t *colsum = packed->colsum + first;
        for (int64_t g = 0; g < groups; g++, out += 4 * width) {
            const int rows = k - 4 * g < 4 ? (int)(k - 4 * g) : 4;
            pack_group(out, b + 4 * g * row_stride + first * column_stride, row_stride, column_stride, rows, columns,
                       flip ? 0x80 : 0);
            memset(out + 4 * columns, 0, (size_t)(width - columns) * 4);
            for (int64_t c = 0; c < columns; c++) colsum[c] += out[4 * c] + out[4 * c + 1] + out[4 * c + 2] + out[4 * c + 3];
        }
    }
}

typedef struct {
    const qk_matmul_call *call;
    qk_matmul_fn *kernel;
    int64_t rows;                  /* a block */
    int64_t row_blocks, panels, panels_a_task;
    int failed;
} job;

/* a' for rows [m, m + rows), contiguous: copied only where it is not already so. */
static const uint8_t *prepared(const qk_matmul_call *call, int64_t m, int64_t rows, uint8_t *scratch) {
    const int64_t k = call->b->k;
    const uint8_t flip = call->flip_a ? 0x80 : 0;
    for (int64_t r = 0; r < rows; r++) {
        const uint8_t *a = call->a + (m + r) * call->a_stride;
        uint8_t *out = scratch + r * k;
        if (call->a_column_stride == 1)
            for (int64_t i = 0; i < k; i++) out[i] = a[i] ^ flip;
        else
            for (int64_t i = 0; i < k; i++) out[i] = a[i * call->a_column_stride] ^ flip;
    }
    return scratch;
}

static void run_block(job *j, int64_t m, int64_t rows, int64_t first_panel, int64_t last_panel) {
    const qk_matmul_call *call = j->call;
    const int64_t k = call->b->k, n = call->b->n, groups = qk_groups(k), padded = qk_padded_columns(n);
    const int copies = call->flip_a || call->a_column_stride != 1, sums = call->e.b_zero != NULL;
    const size_t scratch_bytes = (copies ? (size_t)(rows * k) : 0) + (sums ? (size_t)rows * 4 : 0);
    char *scratch = NULL;
    qk_matmul_tile t = {.a = call->a + m * call->a_stride, .a_stride = call->a_stride, .rows = rows, .k = k, .taps = 1};
    if (scratch_bytes && !(scratch = malloc(scratch_bytes))) {
        j->failed = 1;
        return;
    }
    int32_t *row_terms = (int32_t *)scratch;
    if (copies) {
        t.a = prepared(call, m, rows, (uint8_t *)scratch + (sums ? rows * 4 : 0));
        t.a_stride = k;
    }
    if (sums) {
        for (int64_t r = 0; r < rows; r++) {
            uint32_t sum = 0;
            for (int64_t i = 0; i < k; i++) sum += t.a[r * t.a_stride + i];
            const uint32_t a_zero = (uint32_t)call->a_zero_point - (call->e.a_zero ? (uint32_t)call->e.a_zero[m + r] : 0u);
            row_terms[r] = (int32_t)((uint32_t)k * a_zero - sum);
        }
    }
    const int64_t item = call->e.out == QK_OUT_I32 || call->e.out == QK_OUT_F32 ? 4 : 1;
    for (int64_t p = first_panel; p < last_panel; p++) {
        const int64_t first = p * QK_PANEL;
        t.width = (int)(padded - first < QK_PANEL ? padded - first : QK_PANEL);
        t.columns = (int)(n - first < QK_PANEL ? n - first : QK_PANEL);
        t.b = call->b->data + first * groups * 4;
        t.c = (char *)call->c + m * call->c_stride + first * item;
        t.c_stride = call->c_stride;
        t.e = call->e;
#define MOVE(field, by) if (t.e.field) t.e.field += (by)
        MOVE(start, first);
        MOVE(b_zero, first);
        MOVE(colsum, first);
        MOVE(scale, first);
        MOVE(bias, first);
        MOVE(a_zero, m);
        MOVE(residual, m * call->e.residual_stride + first);
#undef MOVE
        t.e.row = sums ? row_terms : NULL;
        j->kernel(&t);
    }
    free(scratch);
}

static void run_task(void *arg, int task) {
    job *j = arg;
    const int64_t block = task % j->row_blocks, group = task / j->row_blocks;
    const int64_t m = block * j->rows, left = j->call->m - m;
    const int64_t first = group * j->panels_a_task, last = first + j->panels_a_task;
    run_block(j, m, left < j->rows ? left : j->rows, first, last < j->panels ? last : j->panels);
}

int qk_matmul_run(const qk_matmul_call *call) {
    const int64_t m = call->m, k = call->b->k, n = call->b->n;
    if (m == 0 || n == 0) return 0;
    job j = {.call = call, .kernel = (qk_matmul_fn *)qk_table[QK_SLOT_matmul_u8s8]};
    int threads = call->threads < qk_num_threads() ? call->threads : qk_num_threads();
    if ((double)m * (double)n * (double)(k + 16) < WORTH_SHARING) threads = 1;
    j.panels = (n + QK_PANEL - 1) / QK_PANEL;
    j.rows = BLOCK_BYTES / (k + 1);
    j.rows = j.rows < 16 ? 16 : j.rows > 512 ? 512 : j.rows / 8 * 8;
    const int64_t wanted = threads > 1 ? 4 * threads : 1; /* tasks, so that nobody waits long for the last one */
    if (threads > 1 && (m + j.rows - 1) / j.rows < wanted && m >= 8 * wanted) j.rows = (m / wanted + 7) / 8 * 8;
    if (j.rows > m) j.rows = m;
    j.row_blocks = (m + j.rows - 1) / j.rows;
    int64_t groups = (wanted + j.row_blocks - 1) / j.row_blocks;
    if (groups > j.panels) groups = j.panels;
    j.panels_a_task = (j.panels + groups - 1) / groups;
    groups = (j.panels + j.panels_a_task - 1) / j.panels_a_task;
    qk_parallel(run_task, &j, (int)(j.row_blocks * groups), threads);
    return j.failed ? -1 : 0;
}
