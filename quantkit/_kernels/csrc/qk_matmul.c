#include "qk_matmul.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "qk_dispatch.h"
#include "qk_pool.h"

#if QK_X86
#include <emmintrin.h>
#endif

#define BLOCK_BYTES (192 << 10)  /* of `a` that one pass over the panels keeps in the second-level cache */
#define PACKED_ROWS 64           /* of b that are packed into all panels before the next ones */
#define SMALL_PRODUCT (16 << 10) /* bytes of a packed operand with its sums that take no memory of their own */
#define WORTH_SHARING (1 << 18)  /* products below so many multiplications stay on one thread */

void qk_pack_matmul(qk_packed_matmul *packed, const char *b, int64_t row_stride, int64_t column_stride, int flip) {
    const int64_t k = packed->k, n = packed->n, groups = qk_groups(k), padded = qk_padded_columns(n);
    qk_pack_fn *pack = (qk_pack_fn *)qk_table[QK_SLOT_pack_panel];
    qk_panel p = {.row_stride = row_stride, .column_stride = column_stride, .flip = flip ? 0x80 : 0};
    memset(packed->colsum, 0, (size_t)padded * 4);
    /* A block of rows after the other, so that the rows of b are read along; where columns are, whole ones. */
    const int64_t step = row_stride == 1 ? k : PACKED_ROWS;
    for (int64_t from = 0; from < k; from += step)
        for (int64_t first = 0; first < n; first += QK_PANEL) {
            p.k = k - from < step ? k - from : step;
            p.b = b + from * row_stride + first * column_stride;
            p.columns = (int)(n - first < QK_PANEL ? n - first : QK_PANEL);
            p.width = (int)(padded - first < QK_PANEL ? padded - first : QK_PANEL);
            p.out = packed->data + first * groups * 4 + from * p.width;
            p.colsum = packed->colsum + first;
            pack(&p);
        }
    packed->half_range = p.low >= -64 && p.high <= 63;
}

uint32_t qk_sum_bytes(const uint8_t *a, int64_t n) {
    uint32_t sum = 0;
    int64_t i = 0;
#if QK_X86
    __m128i sums = _mm_setzero_si128();
    for (; i + 16 <= n; i += 16)
        sums = _mm_add_epi64(sums, _mm_sad_epu8(_mm_loadu_si128((const __m128i *)(a + i)), _mm_setzero_si128()));
    sum = (uint32_t)_mm_cvtsi128_si32(sums) + (uint32_t)_mm_cvtsi128_si32(_mm_unpackhi_epi64(sums, sums));
#endif
    for (; i < n; i++) sum += a[i];
    return sum;
}

typedef struct {
    const qk_matmul_call *call;
    qk_matmul_fn *kernel;
    int64_t rows;                  /* a block */
    int64_t row_blocks, panels, panels_a_task;
    atomic_int failed; /* any of the threads may say so */
} job;

/* A copy of a' for rows [m, m + rows), contiguous; for operands that are not so already. */
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
    t.half_range = call->b->half_range;
    if (scratch_bytes && !(scratch = malloc(scratch_bytes))) {
        atomic_store(&j->failed, 1);
        return;
    }
    int32_t *row_terms = (int32_t *)scratch;
    if (copies) {
        t.a = prepared(call, m, rows, (uint8_t *)scratch + (sums ? rows * 4 : 0));
        t.a_stride = k;
    }
    if (sums) {
        for (int64_t r = 0; r < rows; r++) {
            const uint32_t sum = qk_sum_bytes(t.a + r * t.a_stride, k);
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
    return atomic_load(&j.failed) ? -1 : 0;
}

typedef struct {
    const qk_matmul_batch *batch;
    atomic_int failed; /* any of the threads may say so */
} batch_job;

static void run_product(void *arg, int index) {
    batch_job *j = arg;
    const qk_matmul_batch *batch = j->batch;
    qk_matmul_call call = batch->one;
    qk_packed_matmul packed = *call.b;
    const int64_t padded = qk_padded_columns(packed.n), bytes = (qk_packed_bytes(packed.k, packed.n) + 63) / 64 * 64;
    _Alignas(64) char small[SMALL_PRODUCT]; /* the heads of an attention find their memory in the first-level cache */
    char *scratch = small;
    if (bytes + 8 * padded > SMALL_PRODUCT && posix_memalign((void **)&scratch, 64, (size_t)(bytes + 8 * padded))) {
        atomic_store(&j->failed, 1);
        return;
    }
    int32_t *start = (int32_t *)(scratch + bytes) + padded;
    packed.data = (int8_t *)scratch;
    packed.colsum = (int32_t *)(scratch + bytes);
    qk_pack_matmul(&packed, batch->b + batch->b_offsets[index], batch->b_row_stride, batch->b_column_stride, batch->flip_b);
    for (int64_t n = 0; n < padded; n++) start[n] = (int32_t)(0 - (uint32_t)call.a_zero_point * (uint32_t)packed.colsum[n]);
    call.b = &packed;
    call.e.start = start;
    call.e.colsum = packed.colsum;
    call.a += batch->a_offsets[index];
    call.c = (char *)call.c + index * batch->c_offset;
    if (qk_matmul_run(&call) < 0) atomic_store(&j->failed, 1);
    if (scratch != small) free(scratch);
}

int qk_matmul_batch_run(const qk_matmul_batch *batch) {
    batch_job j = {.batch = batch};
    const qk_matmul_call *one = &batch->one;
    const double work = (double)one->m * (double)one->b->n * (double)one->b->k * (double)batch->count;
    /* Products side by side; a product that is alone in its turn shares itself out. */
    const int threads = work < WORTH_SHARING || batch->count < one->threads ? 1 : one->threads;
    qk_parallel(run_product, &j, (int)batch->count, threads);
    return atomic_load(&j.failed) ? -1 : 0;
}
