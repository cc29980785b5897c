#include "qk_conv.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "qk_dispatch.h"
#include "qk_pool.h"

#define CACHED (192 << 10)      /* bytes of input that a block keeps in the second-level cache */
#define GATHERED (64 << 10)     /* bytes of gathered rows, or of pointers */
#define WORTH_SHARING (1 << 18) /* convolutions below so many multiplications stay on one thread */

typedef struct {
    qk_conv_call call;
    int64_t pixels, block, blocks;  /* output pixels of an image, of a block; blocks of an image */
    int64_t group_panels, panels, panels_a_task, panel_tasks;
    int64_t outputs, depth, pieces; /* a group: output channels, bytes of a piece of a row, pieces */
    int64_t row_bytes;              /* of a gathered row, or 0 */
    int64_t item;
    int in_place, direct;           /* x is read, y is written where it lies */
    qk_depthwise_rows_fn *whole_rows; /* a depthwise kernel that takes rows of pixels, or NULL */
    int linear;                     /* pixels of x follow each other: no pointers */
    atomic_int failed; /* any of the threads may say so */
} job;

static int64_t lines(int64_t bytes) { return (bytes + 127) / 64 * 64; }

/* Whether pixels in their order are evenly spaced. */
static int even(const int64_t *size, const int64_t *stride) {
    return (size[1] == 1 || stride[1] == size[2] * stride[2]) &&
           (size[0] == 1 || stride[0] == size[1] * size[2] * stride[2]);
}

static int pointwise(const qk_conv_call *c) {
    for (int d = 0; d < QK_SPATIAL; d++)
        if (c->w->kernel[d] != 1 || c->stride[d] != 1 || c->pad[d] != 0 || c->in[d] != c->out[d]) return 0;
    return 1;
}

/* A pointwise convolution of evenly spaced pixels is one of a single dimension. */
static void flatten(qk_conv_call *c) {
    const int64_t pixels = c->in[0] * c->in[1] * c->in[2];
    c->in[0] = c->in[1] = c->out[0] = c->out[1] = 1;
    c->in[2] = c->out[2] = pixels;
}

/* row[p] = K * x_zero - the sum of what output pixel p reads, for the zero points of the weights. */
static void sum_rows(const job *j, const qk_matmul_tile *t, int64_t depth, int64_t pixels, int32_t *row) {
    for (int64_t p = 0; p < pixels; p++) {
        uint32_t sum = 0;
        for (int64_t s = 0; s < t->taps; s++) {
            const uint8_t *a = qk_tile_row(t, s, p);
            for (int64_t i = 0; i < depth; i++) sum += a[i];
        }
        row[p] = (int32_t)((uint32_t)(depth * t->taps) * (uint32_t)j->call.x_zero - sum);
    }
}

/* Columns [first, first + columns) of the pixels of a block go from a dense tile to y. */
static void scatter(const job *j, const char *tile, int64_t tile_stride, char *y, int64_t first_pixel, int64_t pixels,
                    int columns) {
    const qk_conv_call *c = &j->call;
    const int whole = even(c->out, c->y_stride);
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

/* The kernel that takes whole rows of such a convolution, or NULL. */
static qk_depthwise_rows_fn *rows_kernel(const qk_conv_call *c) {
    const int size = c->w->square;
    const int fits = size && c->dilation[1] == 1 && c->dilation[2] == 1 && c->stride[1] == c->stride[2] && c->stride[2] <= 2;
    return fits ? (qk_depthwise_rows_fn *)qk_table[size == 3 ? QK_SLOT_depthwise3x3_u8s8 : QK_SLOT_depthwise5x5_u8s8] : NULL;
}

/* Rows of input that the kernel of whole rows may look at, for so many pixels of output. */
static int64_t rows_for(const qk_conv_call *c, int64_t pixels) {
    return (pixels / c->out[2] + QK_DEPTHWISE_ROWS_MORE) * c->stride[1] + 5;
}

/* Bytes of a row of zero points that stands for rows outside of the image. */
static int64_t zeros_bytes(const job *j, const qk_conv_source *s) {
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
static void *reserve(const job *j, int64_t pixels, const qk_conv_source *s, scratch *m) {
    const qk_conv_call *c = &j->call;
    const int64_t copy = j->in_place ? 0 : lines(qk_conv_copy_bytes(c, s));
    const int64_t zeros = lines(zeros_bytes(j, s));
    const int64_t rows = j->row_bytes ? lines(pixels * j->row_bytes) : 0;
    const int64_t pointers = j->row_bytes || j->linear ? 0 : j->whole_rows ? rows_for(c, pixels) : j->pieces * pixels;
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

static void run_block(job *j, int64_t image, int64_t first, int64_t pixels, int64_t first_panel, int64_t last_panel) {
    const qk_conv_call *c = &j->call;
    const qk_packed_conv *w = c->w;
    const int depthwise = w->form == QK_CONV_DEPTHWISE;
    qk_conv_source s;
    scratch m;
    qk_conv_part(c, first, first + pixels, &s);
    void *memory = reserve(j, pixels, &s, &m);
    if (!memory) {
        atomic_store(&j->failed, 1);
        return;
    }
    if (j->in_place) {
        s.base = c->x + image * c->x_batch_stride;
        for (int d = 0; d < QK_SPATIAL; d++) s.stride[d] = c->x_stride[d], s.base += s.low[d] * s.stride[d];
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
            if (j->row_bytes) qk_conv_columns(c, &s, first, pixels, m.rows, j->row_bytes);
            else if (j->linear) t.a = s.base + t.offset;
            if (c->e.b_zero) sum_rows(j, &t, j->row_bytes ? qk_conv_taps(w) * (w->channels / w->group) : j->depth, pixels, m.row_terms);
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
        } else {
            ((qk_matmul_fn *)qk_table[QK_SLOT_matmul_u8s8])(&t);
        }
        if (!j->direct) scatter(j, t.c, t.c_stride, y + channel * c->y_channel_stride, first, pixels, t.columns);
    }
    free(memory);
}

static void run_task(void *arg, int task) {
    job *j = arg;
    const int64_t part = task % j->panel_tasks, block = task / j->panel_tasks % j->blocks;
    const int64_t image = task / j->panel_tasks / j->blocks, first = block * j->block;
    const int64_t panel = part * j->panels_a_task;
    run_block(j, image, first, smaller(j->block, j->pixels - first), panel, smaller(panel + j->panels_a_task, j->panels));
}

/* How many output pixels a block has: few enough for the caches, and so many blocks that nobody waits for the last. */
static void choose_blocks(job *j, int64_t tasks) {
    const qk_conv_call *c = &j->call;
    const int64_t width = c->out[2];
    int64_t area = 1; /* pixels of x for one of y, as far as it matters: strides may be as long as they like */
    for (int d = 0; d < 3; d++) area = smaller(area * smaller(c->stride[d], 16), 16);
    int64_t block = CACHED / (c->w->channels * qk_conv_repeats(c->w) * area + 1);
    if (j->row_bytes) block = smaller(block, GATHERED / j->row_bytes);
    else if (!j->linear) block = smaller(block, GATHERED / (8 * j->pieces));
    block = smaller(larger(block, 16), 512);
    const int64_t share = (j->pixels * c->batch + tasks - 1) / tasks;
    if (tasks > 1) block = smaller(block, larger(share, j->in_place ? 16 : 32));
    if (j->whole_rows) block = larger(block, width);
    if (block > width && !j->linear) block = block / width * width;
    block = smaller(block, j->pixels);
    j->blocks = (j->pixels + block - 1) / block;
    block = (j->pixels + j->blocks - 1) / j->blocks; /* as even as can be, in whole tiles or whole rows */
    int64_t unit = block >= width && !j->linear ? width : 8;
    while (j->whole_rows && unit < 8 * width && 2 * unit <= block) unit *= 2; /* rows that the kernel takes together */
    j->block = smaller((block + unit - 1) / unit * unit, j->pixels);
    j->blocks = (j->pixels + j->block - 1) / j->block;
}

int qk_conv_run(const qk_conv_call *call) {
    job j = {.call = *call};
    qk_conv_call *c = &j.call;
    const qk_packed_conv *w = c->w;
    const int depthwise = w->form == QK_CONV_DEPTHWISE;
    const int64_t channels = w->channels / w->group, taps = qk_conv_taps(w);
    if (pointwise(c) && even(c->in, c->x_stride) && even(c->out, c->y_stride)) flatten(c), j.linear = !depthwise;
    j.pixels = c->out[0] * c->out[1] * c->out[2];
    if (j.pixels == 0 || c->batch == 0 || w->outputs == 0) return 0;
    j.item = c->e.out == QK_OUT_I32 || c->e.out == QK_OUT_F32 ? 4 : 1;
    j.direct = (c->y_channel_stride == j.item || w->outputs == 1) && even(c->out, c->y_stride);
    j.in_place = !c->flip && (c->x_channel_stride == 1 || w->channels == 1) && qk_conv_repeats(w) == 1 &&
                 w->form != QK_CONV_COLUMNS;
    j.outputs = depthwise ? w->outputs : w->outputs / w->group;
    j.pieces = depthwise ? qk_groups(w->packed->k) * 4 : w->form == QK_CONV_COLUMNS ? 1 : taps;
    j.depth = channels;
    if (w->form == QK_CONV_COLUMNS) j.depth = qk_groups(taps * channels) * 4, j.row_bytes = j.depth + QK_CONV_SLACK;
    j.group_panels = (j.outputs + QK_PANEL - 1) / QK_PANEL;
    j.panels = j.group_panels * (depthwise ? 1 : w->group);
    int threads = smaller(c->threads, qk_num_threads());
    if ((double)j.pixels * (double)c->batch * (double)w->outputs * (double)(taps * channels + 16) < WORTH_SHARING) threads = 1;
    const int64_t tasks = threads > 1 ? 4 * threads : 1;
    j.whole_rows = rows_kernel(c);
    /* Rows of zero points are as long as those of the image, so that those are copied where pixels lie far apart. */
    if (j.whole_rows && (c->x_stride[2] < 0 || c->x_stride[2] > 4 * w->channels)) j.in_place = 0;
    choose_blocks(&j, tasks);
    int64_t parts = smaller((tasks + j.blocks * c->batch - 1) / (j.blocks * c->batch), j.panels);
    j.panels_a_task = (j.panels + parts - 1) / parts;
    j.panel_tasks = (j.panels + j.panels_a_task - 1) / j.panels_a_task;
    qk_parallel(run_task, &j, (int)(c->batch * j.blocks * j.panel_tasks), threads);
    return atomic_load(&j.failed) ? -1 : 0;
}
