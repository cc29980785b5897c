#include <stddef.h>

#include "qk_conv_job.h"
#include "qk_dispatch.h"
#include "qk_pool.h"

#define CACHED (192 << 10)      /* bytes of input that a block keeps in the second-level cache */
#define GATHERED (64 << 10)     /* bytes of gathered rows, or of pointers */
#define WORTH_SHARING (1 << 18) /* convolutions below so many multiplications stay on one thread */

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

/* The kernel that takes whole rows of such a convolution, or NULL. */
static qk_depthwise_rows_fn *rows_kernel(const qk_conv_call *c) {
    const int size = c->w->square;
    const int fits = size && c->dilation[1] == 1 && c->dilation[2] == 1 && c->stride[1] == c->stride[2] && c->stride[2] <= 2;
    return fits ? (qk_depthwise_rows_fn *)qk_table[size == 3 ? QK_SLOT_depthwise3x3_u8s8 : QK_SLOT_depthwise5x5_u8s8] : NULL;
}

static void run_task(void *arg, int task) {
    qk_conv_job *j = arg;
    const int64_t part = task % j->panel_tasks, block = task / j->panel_tasks % j->blocks;
    const int64_t image = task / j->panel_tasks / j->blocks, first = block * j->block;
    const int64_t panel = part * j->panels_a_task;
    qk_conv_block(j, image, first, smaller(j->block, j->pixels - first), panel, smaller(panel + j->panels_a_task, j->panels));
}

/* How many output pixels a block has: few enough for the caches, and so many blocks that nobody waits for the last. */
static void choose_blocks(qk_conv_job *j, int64_t tasks) {
    const qk_conv_call *c = &j->call;
    const int64_t width = c->out[2];
    int64_t area = 1; /* pixels of x for one of y, as far as it matters: strides may be as long as they like */
    for (int d = 0; d < 3; d++) area = smaller(area * smaller(c->stride[d], 16), 16);
    int64_t block = CACHED / (c->w->channels * qk_conv_repeats(c->w) * area + 1);
    if (j->row_bytes) block = smaller(block, GATHERED / j->row_bytes);
    else if (!j->linear) block = smaller(block, GATHERED / (8 * j->pieces));
    block = smaller(larger(block, 16), j->in_lines ? 2048 : 512);
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
    qk_conv_job j = {.call = *call};
    qk_conv_call *c = &j.call;
    const qk_packed_conv *w = c->w;
    const int depthwise = w->form == QK_CONV_DEPTHWISE;
    const int64_t channels = w->channels / w->group, taps = qk_conv_taps(w);
    if (pointwise(c) && qk_conv_even(c->in, c->x_stride) && qk_conv_even(c->out, c->y_stride)) flatten(c), j.linear = !depthwise;
    j.pixels = c->out[0] * c->out[1] * c->out[2];
    if (j.pixels == 0 || c->batch == 0 || w->outputs == 0) return 0;
    j.item = c->e.out == QK_OUT_I32 || c->e.out == QK_OUT_F32 ? 4 : 1;
    j.direct = (c->y_channel_stride == j.item || w->outputs == 1) && qk_conv_even(c->out, c->y_stride);
    j.in_place = !c->flip && (c->x_channel_stride == 1 || w->channels == 1) && qk_conv_repeats(w) == 1 &&
                 w->form != QK_CONV_LINES;
    j.outputs = depthwise ? w->outputs : w->outputs / w->group;
    j.pieces = depthwise ? qk_groups(w->packed->k) * 4 : taps;
    j.depth = channels;
    if (w->form == QK_CONV_LINES) {
        j.in_lines = (c->dilation[2] == 1 || w->kernel[2] == 1) && c->stride[2] <= w->kernel[2] && w->kernel[0] == 1 &&
                     c->out[0] == 1 && c->in[0] == 1 && c->pad[0] == 0 && c->stride[1] <= 16 && c->dilation[1] <= 16;
        j.pieces = j.in_lines ? w->kernel[0] * w->kernel[1] : 1;
        j.depth = w->packed->k / j.pieces;
        if (!j.in_lines) j.row_bytes = j.depth;
    }
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
