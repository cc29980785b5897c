#include "qk_rnn.h"

#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "qk_dispatch.h"
#include "qk_dynamic.h"
#include "qk_pool.h"

#define ROWS 64                  /* of the batch that walk through time together, and of x in one product */
#define WORTH_SHARING (1 << 18)  /* multiplications of floats; products below stay on one thread */

void qk_pack_floats(float *packed, const float *w, int64_t stride, int64_t k, int64_t n) {
    const int64_t padded = qk_padded_columns(n);
    for (int64_t first = 0; first < n; first += QK_PANEL) {
        const int64_t width = padded - first < QK_PANEL ? padded - first : QK_PANEL;
        const int64_t columns = n - first < QK_PANEL ? n - first : QK_PANEL;
        float *panel = packed + first * k;
        for (int64_t from = 0; from < k; from += 16) /* a cache line of each row at a time */
            for (int64_t c = 0; c < width; c++)
                for (int64_t i = from; i < k && i < from + 16; i++)
                    panel[i * width + c] = c < columns ? w[(first + c) * stride + i] : 0.0f;
    }
}

typedef struct {
    const qk_rnn_call *call;
    int64_t rows;        /* of the batch, in one block */
    int blocks, threads; /* threads of the products within a block */
    atomic_llong nonfinite;
    atomic_int failed;
} job;

/* One product of rows with weights: what goes in, and what comes out for the cell. */
typedef struct {
    float *real;     /* rows * k: the left operand */
    uint8_t *codes;  /* and its codes, where the weights are codes */
    float *scale;    /* a row */
    int32_t *less;   /* a row: 0 - zero point, as the epilogue of a product wants it */
    void *out;       /* rows * padded columns: float32 or int32 */
} operand;

typedef struct {
    qk_float_tile tile;
    const float *values;
    int64_t panels, a_task, padded;
} float_job;

static void run_panels(void *arg, int task) {
    const float_job *j = arg;
    qk_float_product_fn *product = (qk_float_product_fn *)qk_table[QK_SLOT_float_product_f32];
    const int64_t last = (task + 1) * j->a_task;
    for (int64_t p = task * j->a_task; p < last && p < j->panels; p++) {
        const int64_t first = p * QK_PANEL, left = j->padded - first;
        qk_float_tile t = j->tile;
        t.width = (int)(left < QK_PANEL ? left : QK_PANEL);
        t.b = j->values + first * t.k;
        t.c += first;
        product(&t);
    }
}

/* out = left times the panels [first, end) of the weights. */
static int multiply(const qk_rnn_weights *w, const operand *o, int64_t rows, int64_t first, int64_t end, int threads) {
    const int64_t k = w->k, padded = qk_padded_columns(w->n), from = first * QK_PANEL;
    const int64_t columns = (w->n < end * QK_PANEL ? w->n : end * QK_PANEL) - from;
    if (w->codes) {
        qk_packed_matmul part = *w->codes;
        part.n = columns;
        part.data += from * qk_groups(k) * 4;
        part.colsum += from;
        qk_matmul_call call = {.a = o->codes, .a_stride = k, .a_column_stride = 1, .m = rows, .b = &part,
                               .c = (int32_t *)o->out + from, .c_stride = padded * 4, .threads = threads};
        call.e.out = QK_OUT_I32;
        call.e.a_zero = o->less;
        call.e.colsum = part.colsum;
        call.e.b_zero = w->zero ? w->zero + from : NULL;
        return qk_matmul_run(&call);
    }
    float_job j = {.values = w->values + from * k, .padded = qk_padded_columns(columns)};
    j.tile = (qk_float_tile){.a = o->real, .a_stride = k, .rows = rows, .k = k, .c = (float *)o->out + from,
                             .c_stride = padded};
    j.panels = (columns + QK_PANEL - 1) / QK_PANEL;
    if ((double)rows * (double)columns * (double)(k + 16) < WORTH_SHARING) threads = 1;
    const int64_t tasks = threads > 1 && j.panels > 1 ? (4 * threads < j.panels ? 4 * threads : j.panels) : 1;
    j.a_task = (j.panels + tasks - 1) / tasks;
    qk_parallel(run_panels, &j, (int)((j.panels + j.a_task - 1) / j.a_task), threads);
    return 0;
}

/* Codes of a row of the left operand, as DynamicQuantizeLinear; returns how many values are not finite. */
static int64_t quantize_row(const operand *o, int64_t row, int64_t k) {
    qk_range range = {INFINITY, -INFINITY, 0};
    float scale;
    int32_t zero;
    ((qk_range_fn *)qk_table[QK_SLOT_range_f32])(o->real + row * k, k, &range);
    if (range.nonfinite) return range.nonfinite;
    if (range.lo > range.hi) range.lo = range.hi = 0;
    qk_dynamic_choose(range.lo, range.hi, &scale, &zero);
    const qk_affine p = {.scale = &scale, .zero_point = &zero};
    ((qk_affine_fn *)qk_table[QK_SLOT_quantize_f32_u8])(o->real + row * k, o->codes + row * k, k, &p);
    o->scale[row] = scale;
    o->less[row] = -zero;
    return 0;
}

static qk_half_gates half(const qk_rnn_weights *w, const operand *o, int64_t row) {
    const int64_t at = row * qk_padded_columns(w->n);
    if (!w->codes) return (qk_half_gates){.real = (const float *)o->out + at};
    return (qk_half_gates){.sums = (const int32_t *)o->out + at, .scale = w->scale, .row_scale = o->scale[row]};
}

static char *cut(char **memory, size_t bytes) {
    char *part = *memory;
    *memory += (bytes + 63) / 64 * 64;
    return part;
}

static size_t operand_bytes(const qk_rnn_weights *w, int64_t rows) {
    return (size_t)rows * (size_t)(5 * w->k + 8 + 4 * qk_padded_columns(w->n)) + 5 * 64;
}

static void cut_operand(const qk_rnn_weights *w, int64_t rows, char **memory, operand *o) {
    o->real = (float *)cut(memory, (size_t)(rows * w->k) * 4);
    o->codes = (uint8_t *)cut(memory, (size_t)(rows * w->k));
    o->scale = (float *)cut(memory, (size_t)rows * 4);
    o->less = (int32_t *)cut(memory, (size_t)rows * 4);
    o->out = cut(memory, (size_t)(rows * qk_padded_columns(w->n)) * 4);
}

/* Rows [b0, b0 + rows) of the batch, in one direction. */
typedef struct {
    job *j;
    const qk_rnn_call *call;
    const qk_rnn_direction *d;
    int index;
    int64_t b0, rows;
    operand x, h, reset; /* h.real is the state */
    float *cell, *between;
} walk;

static int64_t length(const walk *s, int64_t b) { return s->call->lengths ? s->call->lengths[s->b0 + b] : s->call->seq; }

/* Where in time row b is at its step. */
static int64_t place(const walk *s, int64_t b, int64_t step) { return s->d->reverse ? length(s, b) - 1 - step : step; }

/* The rows of x for steps [first, last), gathered; those that are over are zero. Returns what is not finite. */
static int64_t gather(const walk *s, int64_t first, int64_t last) {
    const qk_rnn_call *c = s->call;
    int64_t row = 0, bad = 0;
    for (int64_t step = first; step < last; step++)
        for (int64_t b = 0; b < s->rows; b++, row++) {
            float *to = s->x.real + row * c->input;
            if (step >= length(s, b)) {
                memset(to, 0, (size_t)c->input * 4);
            } else {
                const char *from = c->x + place(s, b, step) * c->x_t + (s->b0 + b) * c->x_b;
                if (c->x_i == 4) memcpy(to, from, (size_t)c->input * 4);
                else
                    for (int64_t i = 0; i < c->input; i++) memcpy(to + i, from + i * c->x_i, 4);
            }
            if (s->d->w.codes) bad += quantize_row(&s->x, row, c->input);
        }
    return bad;
}

/* The product of the state, or of what the reset gate left of it, with panels of R. */
static int recur(const walk *s, const operand *o, int64_t first, int64_t end) {
    int64_t bad = 0;
    if (s->d->r.codes)
        for (int64_t b = 0; b < s->rows; b++) bad += quantize_row(o, b, s->call->hidden);
    if (bad) {
        atomic_fetch_add(&s->j->nonfinite, bad);
        return -2;
    }
    return multiply(&s->d->r, o, s->rows, first, end, s->j->threads);
}

static void run_cells(const walk *s, int64_t step, int64_t x_row, const operand *h, int part) {
    static const int slots[] = {QK_SLOT_cell_rnn, QK_SLOT_cell_lstm, QK_SLOT_cell_gru};
    const qk_rnn_call *c = s->call;
    qk_cell_fn *cell = (qk_cell_fn *)qk_table[slots[c->cell]];
    qk_cell_step t = {.hidden = c->hidden, .bias = s->d->bias, .bias_h = s->d->bias_h, .peephole = s->d->peephole,
                      .activation = s->d->activation, .clip = c->clip, .input_forget = c->input_forget,
                      .linear_before_reset = c->linear_before_reset, .part = part};
    for (int64_t b = 0; b < s->rows; b++) {
        if (step >= length(s, b)) continue;
        t.x = half(&s->d->w, &s->x, x_row + b);
        t.h = half(&s->d->r, h, b);
        t.state = s->h.real + b * c->hidden;
        t.cell = s->cell + b * c->hidden;
        t.between = s->between + b * 2 * c->hidden;
        cell(&t);
        if (part == QK_STEP_GATES) memcpy(s->reset.real + b * c->hidden, t.between + c->hidden, (size_t)c->hidden * 4);
        else
            memcpy(c->y + place(s, b, step) * c->y_t + s->index * c->y_d + (s->b0 + b) * c->y_b, t.state,
                   (size_t)c->hidden * 4);
    }
}

static int take_step(const walk *s, int64_t step, int64_t x_row) {
    const qk_rnn_call *c = s->call;
    const int64_t panels = (s->d->r.n + QK_PANEL - 1) / QK_PANEL;
    const int twice = c->cell == QK_CELL_GRU && !c->linear_before_reset;
    int status = recur(s, &s->h, 0, twice ? (2 * c->hidden + QK_PANEL - 1) / QK_PANEL : panels);
    if (status) return status;
    run_cells(s, step, x_row, &s->h, twice ? QK_STEP_GATES : QK_STEP_WHOLE);
    if (!twice) return 0;
    if ((status = recur(s, &s->reset, 2 * c->hidden / QK_PANEL, panels))) return status;
    run_cells(s, step, x_row, &s->reset, QK_STEP_STATE);
    return 0;
}

static int walk_through(const walk *s, int64_t chunk) {
    const int64_t panels = (s->d->w.n + QK_PANEL - 1) / QK_PANEL;
    int64_t steps = 0;
    for (int64_t b = 0; b < s->rows; b++) steps = length(s, b) > steps ? length(s, b) : steps;
    for (int64_t first = 0; first < steps; first += chunk) {
        const int64_t last = first + chunk < steps ? first + chunk : steps;
        const int64_t bad = gather(s, first, last);
        if (bad) {
            atomic_fetch_add(&s->j->nonfinite, bad);
            return -2;
        }
        int status = multiply(&s->d->w, &s->x, (last - first) * s->rows, 0, panels, s->j->threads);
        for (int64_t step = first; step < last && !status; step++) status = take_step(s, step, (step - first) * s->rows);
        if (status) return status;
    }
    return 0;
}

static void run_block(void *arg, int task) {
    job *j = arg;
    const qk_rnn_call *c = j->call;
    walk s = {.j = j, .call = c, .index = task / j->blocks, .b0 = (task % j->blocks) * j->rows};
    s.d = c->direction + s.index;
    s.rows = c->batch - s.b0 < j->rows ? c->batch - s.b0 : j->rows;
    int64_t chunk = ROWS / s.rows;
    if (chunk > c->seq) chunk = c->seq > 0 ? c->seq : 1;
    const int64_t hidden = c->hidden, x_rows = chunk * s.rows;
    const size_t bytes = operand_bytes(&s.d->w, x_rows) + 2 * operand_bytes(&s.d->r, s.rows) + (size_t)(s.rows * hidden) * 12 + 256;
    void *whole;
    if (posix_memalign(&whole, 64, bytes)) {
        atomic_store(&j->failed, 1);
        return;
    }
    char *memory = whole;
    cut_operand(&s.d->w, x_rows, &memory, &s.x);
    cut_operand(&s.d->r, s.rows, &memory, &s.h);
    cut_operand(&s.d->r, s.rows, &memory, &s.reset);
    s.cell = (float *)cut(&memory, (size_t)(s.rows * hidden) * 4);
    s.between = (float *)cut(&memory, (size_t)(s.rows * hidden) * 8);
    const size_t row = (size_t)hidden * 4;
    memset(s.reset.real, 0, row * (size_t)s.rows); /* rows that are over are multiplied as well */
    for (int64_t b = 0; b < s.rows; b++) {
        float *h = s.h.real + b * hidden, *cell = s.cell + b * hidden;
        if (c->h0) memcpy(h, c->h0 + s.index * c->h0_d + (s.b0 + b) * c->h0_b, row);
        else memset(h, 0, row);
        if (c->c0) memcpy(cell, c->c0 + s.index * c->c0_d + (s.b0 + b) * c->c0_b, row);
        else memset(cell, 0, row);
        for (int64_t t = length(&s, b); t < c->seq; t++)
            memset(c->y + t * c->y_t + s.index * c->y_d + (s.b0 + b) * c->y_b, 0, row);
    }
    if (walk_through(&s, chunk) == -1) atomic_store(&j->failed, 1);
    for (int64_t b = 0; b < s.rows; b++) {
        memcpy(c->y_h + s.index * c->yh_d + (s.b0 + b) * c->yh_b, s.h.real + b * hidden, row);
        if (c->y_c) memcpy(c->y_c + s.index * c->yc_d + (s.b0 + b) * c->yc_b, s.cell + b * hidden, row);
    }
    free(whole);
}

int qk_rnn_run(const qk_rnn_call *call) {
    if (call->batch == 0) return 0;
    job j = {.call = call, .blocks = (int)((call->batch + ROWS - 1) / ROWS)};
    const int tasks = j.blocks * call->directions;
    j.rows = (call->batch + j.blocks - 1) / j.blocks;
    const double work = (double)call->seq * (double)call->batch * call->directions * (double)call->direction->w.n *
                        (double)(call->input + call->hidden + 16);
    int threads = call->threads < qk_num_threads() ? call->threads : qk_num_threads();
    if (work < WORTH_SHARING) threads = 1;
    j.threads = threads;
    qk_parallel(run_block, &j, tasks, tasks > 1 ? threads : 1);
    if (atomic_load(&j.failed)) return -1;
    const long long bad = atomic_load(&j.nonfinite);
    return bad > INT_MAX ? INT_MAX : (int)bad;
}
