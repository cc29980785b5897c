/* One block of output pixels: where its input lies or is copied to, the products, and the way to y. */
#include "qk_conv_job.h"

#include <stdlib.h>
#include <string.h>

#include "qk_dispatch.h"

static int64_t lines(int64_t bytes) { return (bytes + 127) / 64 * 64; }

/* row[p] = K * x_zero - the sum of what output pixel p reads, `bytes` a piece, for the zero points of the weights. */
static void sum_rows(const qk_conv_job *j, const qk_matmul_tile *t, int64_t bytes, int64_t pixels, int32_t *row) {
    const qk_packed_conv *w = j->call.w;
    const uint32_t zeros = (uint32_t)(qk_conv_taps(w) * (w->channels / w->group)) * (uint32_t)j->call.x_zero;
    for (int64_t p = 0; p < pixels; p++) {
        uint32_t sum = 0;
        for (int64_t s = 0; s < t->taps; s++) sum += qk_sum_bytes(qk_tile_row(t, s, p), bytes);
        row[p] = (int32_t)(zeros - sum);
    }
}

/* Columns [first, first + columns) of the pixels of a block go from a dense tile to y. */
static void scatter(const qk_conv_job *j, const char *tile, int64_t tile_stride, char *y, int64_t first_pixel, int64_t pixels,
                    int columns) {
    const qk_conv_call *c = &j->call;
    const int whole = qk_conv_even(c->out, c->y_stride);
    for (int64_t p = 0, run; p < pixels; p += run) {
        const int64_t at = first_pixel + p, row = at / c->out[2];
        run = whole ? pixels : smaller(c->out[2] - at % c->out[2], pixels - p);
        char *to = whole ? y + at * c->y_stride[2]
                         : y + at % c->out[2] * c->y_stride[2] + row % c->out[1] * c->y_stride[1] + row / c->out[1] * c->y_stride[0];
        const char *from = tile + p * tile_stride;
        if (c->y_channel_stride == j->item)
            for (int64_t i = 0; i < run; i++) memcpy(to + i * c->y_stride[2], from + i * tile_stride, (size_t)(columns * j->item));
        else if (j->item == 1 && c->y_stride[2] == 1)
            ((qk_transpose_fn *)qk_table[QK_SLOT_transpose_u8])((const uint8_t *)from, tile_stride, (uint8_t *)to, c->y_channel_stride, run, columns, 0);
        else if (j->item == 1)
            for (int64_t i = 0; i < run; i++)
                for (int n = 0; n < columns; n++) to[i * c->y_stride[2] + n * c->y_channel_stride] = from[i * tile_stride + n];
        else
            for (int n = 0; n < columns; n++)
                for (int64_t i = 0; i < run; i++)
                    memcpy(to + i * c->y_stride[2] + n * c->y_channel_stride, from + i * tile_stride + 4 * n, 4);
    }
}

typedef struct {
    uint8_t *copy, *zeros, *rows, *tile;
    const uint8_t **at;
    int32_t *row_terms;
} scratch;

/* Rows of input that the kernel of whole rows may look at, for so many pixels of output. */
static int64_t rows_for(const qk_conv_call *c, int64_t pixels) {
    return (pixels / c->out[2] + QK_DEPTHWISE_ROWS_MORE) * c->stride[1] + 5;
}

/* Bytes of a row of zero points that stands for rows outside of the image. */
static int64_t zeros_bytes(const qk_conv_job *j, const qk_conv_source *s) {
    const qk_conv_call *c = &j->call;
    const int64_t pixel = c->w->channels * qk_conv_repeats(c->w);
    return pixel + (j->whole_rows ? (s->high[2] - s->low[2]) * (j->in_place ? c->x_stride[2] : pixel) : 0) + 64;
}

static void find_rows(const qk_conv_call *c, const qk_conv_source *s, int64_t row, int64_t count, scratch *m,
                      qk_depthwise_rows_tile *d) {
    for (int64_t i = 0; i < count; i++) {
        const int64_t h = row * c->stride[1] - c->pad[1] + i;
        m->at[i] = h >= s->low[1] && h < s->high[1] ? s->base + (h - s->low[1]) * s->stride[1] : m->zeros;
    }
    *d = (qk_depthwise_rows_tile){.rows = m->at, .step = s->stride[2], .in_width = s->high[2] - s->low[2],
                                  .out_width = c->out[2], .pad = c->pad[2] + s->low[2], .stride = (int)c->stride[2],
                                  .zero = (uint8_t)c->x_zero};
}

/* The memory of a block, in one piece; frees with the returned pointer. */
static void *reserve(const qk_conv_job *j, int64_t first, int64_t pixels, const qk_conv_source *s, scratch *m) {
    const qk_conv_call *c = &j->call;
    const int64_t copy = j->in_place ? 0
                         : lines(j->in_lines ? qk_conv_lines_bytes(c, first, pixels) : qk_conv_copy_bytes(c, s));
    const int64_t zeros = lines(zeros_bytes(j, s));
    const int64_t rows = j->row_bytes ? lines(pixels * j->row_bytes) : 0;
    const int64_t pointers = j->row_bytes || j->linear || j->in_lines ? 0 : j->whole_rows ? rows_for(c, pixels) : j->pieces * pixels;
    const int64_t at = lines(pointers * (int64_t)sizeof *m->at);
    const int64_t terms = c->e.b_zero ? lines(pixels * 4) : 0, tile = j->direct ? 0 : lines(pixels * QK_PANEL * j->item);
    uint8_t *memory = NULL;
    if (posix_memalign((void **)&memory, 64, (size_t)(copy + zeros + rows + at + terms + tile))) return NULL;
    m->copy = memory;
    m->zeros = m->copy + copy;
    m->rows = m->zeros + zeros;
    m->at = (const uint8_t **)(m->rows + rows);
    m->row_terms = (int32_t *)(m->rows + rows + at);
    m->tile = m->rows + rows + at + terms;
    memset(m->zeros, c->x_zero, (size_t)zeros);
    return memory;
}

static void move_epilogue(qk_epilogue *e, int64_t by, int64_t residual) {
#define MOVE(field, by) if (e->field) e->field += (by)
    MOVE(start, by);
    MOVE(b_zero, by);
    MOVE(scale, by);
    MOVE(bias, by);
    MOVE(residual, residual);
#undef MOVE
}

/* The part of `whole` that lies in one row of the output, from pixel p of the block on. */
static qk_matmul_tile line_of(const qk_conv_job *j, const qk_matmul_tile *whole, const qk_conv_source *s, int64_t first, int64_t pixels,
                              int64_t p) {
    const qk_conv_call *c = &j->call;
    const int64_t at = first + p, width = c->out[2];
    qk_matmul_tile t = *whole;
    t.rows = smaller(width - at % width, pixels - p);
    t.a += (at / width - first / width) * c->stride[1] * s->stride[1] + (at % width - first % width) * t.a_stride;
    t.c = (char *)t.c + p * t.c_stride;
    if (t.e.row) t.e.row += p;
    if (t.e.residual) t.e.residual += p * t.e.residual_stride;
    return t;
}

static void sum_lines(const qk_conv_job *j, qk_matmul_tile t, const qk_conv_source *s, int64_t first, int64_t pixels, int32_t *row) {
    for (int64_t p = 0; p < pixels;) {
        const qk_matmul_tile line = line_of(j, &t, s, first, pixels, p);
        sum_rows(j, &line, qk_conv_line(j->call.w), line.rows, row + p);
        p += line.rows;
    }
}

static void run_lines(const qk_conv_job *j, qk_matmul_tile t, const qk_conv_source *s, int64_t first, int64_t pixels) {
    for (int64_t p = 0; p < pixels;) {
        const qk_matmul_tile line = line_of(j, &t, s, first, pixels, p);
        ((qk_matmul_fn *)qk_table[QK_SLOT_matmul_u8s8])(&line);
        p += line.rows;
    }
}

void qk_conv_block(qk_conv_job *j, int64_t image, int64_t first, int64_t pixels, int64_t first_panel, int64_t last_panel) {
    const qk_conv_call *c = &j->call;
    const qk_packed_conv *w = c->w;
    const int depthwise = w->form == QK_CONV_DEPTHWISE;
    qk_conv_source s;
    scratch m;
    qk_conv_part(c, first, first + pixels, &s);
    void *memory = reserve(j, first, pixels, &s, &m);
    if (!memory) {
        atomic_store(&j->failed, 1);
        return;
    }
    if (j->in_place) {
        s.base = c->x + image * c->x_batch_stride;
        for (int d = 0; d < QK_SPATIAL; d++) s.stride[d] = c->x_stride[d], s.base += s.low[d] * s.stride[d];
    } else if (j->in_lines) {
        qk_conv_lines(c, image, first, pixels, m.copy, &s);
    } else {
        qk_conv_copy(c, image, &s, m.copy);
    }
    qk_depthwise_rows_tile d;
    qk_matmul_tile t = {.rows = pixels, .k = j->depth, .taps = j->pieces};
    if (j->row_bytes) {
        t.a = m.rows, t.a_stride = j->row_bytes;
    } else if (j->linear) {
        t.a = s.base, t.a_stride = s.stride[2];
    } else if (j->whole_rows) {
        find_rows(c, &s, first / c->out[2], rows_for(c, pixels), &m, &d);
    } else if (j->in_lines) {
        t.a = s.base, t.a_stride = c->stride[2] * s.stride[2], t.a_piece_stride = c->dilation[1] * s.stride[1];
    } else {
        qk_conv_pointers(c, &s, first, pixels, w->order, j->pieces, m.zeros, m.at, pixels);
        t.at = m.at, t.at_stride = pixels;
    }
    char *y = (char *)c->y + image * c->y_batch_stride;
    int64_t prepared = -1;
    for (int64_t p = first_panel; p < last_panel; p++) {
        const int64_t g = p / j->group_panels, column = p % j->group_panels * QK_PANEL, channel = g * j->outputs + column;
        const qk_packed_matmul *b = &w->packed[g];
        const int64_t padded = qk_padded_columns(b->n);
        if (g != prepared && !depthwise) {
            t.offset = g * j->depth;
            if (j->row_bytes) qk_conv_gather(c, &s, first, pixels, m.rows, j->row_bytes);
            else if (j->linear) t.a = s.base + t.offset;
            if (c->e.b_zero && j->in_lines) sum_lines(j, t, &s, first, pixels, m.row_terms);
            else if (c->e.b_zero) sum_rows(j, &t, j->depth, pixels, m.row_terms);
            prepared = g;
        }
        t.width = (int)smaller(padded - column, QK_PANEL);
        t.columns = (int)smaller(b->n - column, QK_PANEL);
        t.b = b->data + column * qk_groups(b->k) * 4;
        t.half_range = b->half_range;
        t.e = c->e;
        move_epilogue(&t.e, g * padded + column, image * c->residual_batch_stride + first * c->e.residual_stride + channel);
        t.e.row = c->e.b_zero ? m.row_terms : NULL;
        t.c_stride = j->direct ? c->y_stride[2] : QK_PANEL * j->item;
        t.c = j->direct ? y + first * c->y_stride[2] + channel * j->item : (char *)m.tile;
        if (depthwise) {
            t.offset = column;
            if (j->whole_rows) {
                d.t = t;
                j->whole_rows(&d);
            } else {
                ((qk_depthwise_fn *)qk_table[QK_SLOT_depthwise_u8s8])(&t);
            }
        } else if (j->in_lines) {
            run_lines(j, t, &s, first, pixels);
        } else {
            ((qk_matmul_fn *)qk_table[QK_SLOT_matmul_u8s8])(&t);
        }
        if (!j->direct) scatter(j, t.c, t.c_stride, y + channel * c->y_channel_stride, first, pixels, t.columns);
    }
    free(memory);
}
