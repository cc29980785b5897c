#include "qk_conv.h"

#include <string.h>

#include "qk_dispatch.h"


void qk_conv_part(const qk_conv_call *call, int64_t first, int64_t last, qk_conv_source *s) {
    int64_t from = first, to = last - 1, size = call->out[0] * call->out[1] * call->out[2];
    int whole = 0; /* an outer dimension varies, so that this one takes all of its values */
    for (int d = 0; d < QK_SPATIAL; d++) {
        size /= call->out[d];
        const int64_t begin = whole ? 0 : from / size, end = whole ? call->out[d] - 1 : to / size;
        const int64_t reach = (call->w->kernel[d] - 1) * call->dilation[d];
        whole |= begin != end;
        from %= size, to %= size;
        s->low[d] = smaller(larger(begin * call->stride[d] - call->pad[d], 0), call->in[d]);
        s->high[d] = larger(smaller(end * call->stride[d] - call->pad[d] + reach + 1, call->in[d]), s->low[d]);
    }
}

int64_t qk_conv_copy_bytes(const qk_conv_call *call, const qk_conv_source *s) {
    int64_t bytes = call->w->channels * qk_conv_repeats(call->w);
    for (int d = 0; d < QK_SPATIAL; d++) bytes *= s->high[d] - s->low[d];
    return bytes + QK_CONV_SLACK;
}

/* `pixels` neighbours in memory of x become channels-last. */
static void copy_run(const qk_conv_call *call, const uint8_t *x, int64_t pixels, uint8_t *out) {
    const int64_t channels = call->w->channels, repeats = qk_conv_repeats(call->w), step = call->x_stride[2];
    const uint8_t flip = call->flip ? 0x80 : 0;
    if (call->x_channel_stride == 1 && step == channels && repeats == 1 && !flip) {
        memcpy(out, x, (size_t)(pixels * channels));
    } else if (call->x_channel_stride == 1 && step == channels && repeats == 1) {
        for (int64_t i = 0; i < pixels * channels; i++) out[i] = x[i] ^ flip;
    } else if (step == 1 && repeats == 1 && channels > 1) {
        ((qk_transpose_fn *)qk_table[QK_SLOT_transpose_u8])(x, call->x_channel_stride, out, channels, channels, pixels, flip);
    } else if (call->x_channel_stride == 1 && repeats == 1) {
        for (int64_t p = 0; p < pixels; p++, x += step, out += channels)
            for (int64_t c = 0; c < channels; c++) out[c] = x[c] ^ flip;
    } else {
        for (int64_t p = 0; p < pixels; p++, x += step)
            for (int64_t c = 0; c < channels; c++)
                for (int64_t r = 0; r < repeats; r++) *out++ = x[c * call->x_channel_stride] ^ flip;
    }
}

void qk_conv_copy(const qk_conv_call *call, int64_t image, qk_conv_source *s, uint8_t *memory) {
    const int64_t width = s->high[2] - s->low[2], height = s->high[1] - s->low[1];
    s->stride[2] = call->w->channels * qk_conv_repeats(call->w);
    s->stride[1] = width * s->stride[2];
    s->stride[0] = height * s->stride[1];
    s->base = memory;
    /* Rows that lie together are one run. */
    const int merged = width == call->in[2] && call->x_stride[1] == width * call->x_stride[2];
    const int64_t rows = merged ? smaller(height, 1) : height, run = merged ? height * width : width;
    for (int64_t d = s->low[0]; d < s->high[0]; d++)
        for (int64_t h = 0; h < rows; h++) {
            const uint8_t *x = call->x + image * call->x_batch_stride + d * call->x_stride[0] +
                               (s->low[1] + h) * call->x_stride[1] + s->low[2] * call->x_stride[2];
            copy_run(call, x, run, memory + (d - s->low[0]) * s->stride[0] + h * s->stride[1]);
        }
}

/* Calls the body for each run of output pixels within one row: `run` pixels of the block, from `at` on, the first at
 * input coordinates origin[]. */
#define FOR_EACH_ROW(call, first, pixels, at, run, origin)                                        \
    for (int64_t at = 0, run, origin[QK_SPATIAL]; at < (pixels); at += run)                       \
        if (run = row_run(call, (first) + at, (pixels) - at, origin), 1)

static int64_t row_run(const qk_conv_call *call, int64_t pixel, int64_t left, int64_t *origin) {
    const int64_t ow = pixel % call->out[2], row = pixel / call->out[2];
    origin[2] = ow * call->stride[2] - call->pad[2];
    origin[1] = row % call->out[1] * call->stride[1] - call->pad[1];
    origin[0] = row / call->out[1] * call->stride[0] - call->pad[0];
    return smaller(call->out[2] - ow, left);
}

/* Pixels [from, to) of a run whose tap at column `iw` (of the first pixel) lies inside [low, high). */
static void inside(int64_t iw, int64_t step, int64_t low, int64_t high, int64_t run, int64_t *from, int64_t *to) {
    *from = iw >= low ? 0 : smaller((low - iw + step - 1) / step, run);
    *to = iw >= high ? *from : larger(smaller((high - iw + step - 1) / step, run), *from);
}

void qk_conv_pointers(const qk_conv_call *call, const qk_conv_source *s, int64_t first, int64_t pixels,
                      const int32_t *order, int64_t count, const uint8_t *zeros, const uint8_t **at, int64_t stride) {
    const int64_t *kernel = call->w->kernel, *dilation = call->dilation, step = call->stride[2];
    FOR_EACH_ROW(call, first, pixels, p, run, origin) {
        for (int64_t k = 0; k < count; k++) {
            const int64_t tap = order ? order[k] : k, kd = tap / (kernel[1] * kernel[2]);
            const int64_t d = origin[0] + kd * dilation[0], h = origin[1] + tap / kernel[2] % kernel[1] * dilation[1];
            const int64_t w = origin[2] + tap % kernel[2] * dilation[2];
            const uint8_t **out = at + k * stride + p;
            int64_t from = 0, to = 0;
            if (tap >= 0 && d >= s->low[0] && d < s->high[0] && h >= s->low[1] && h < s->high[1])
                inside(w, step, s->low[2], s->high[2], run, &from, &to);
            for (int64_t i = 0; i < from; i++) out[i] = zeros;
            if (from < to) {
                const uint8_t *x = s->base + (d - s->low[0]) * s->stride[0] + (h - s->low[1]) * s->stride[1] +
                                   (w + from * step - s->low[2]) * s->stride[2];
                for (int64_t i = from; i < to; i++, x += step * s->stride[2]) out[i] = x;
            }
            for (int64_t i = to; i < run; i++) out[i] = zeros;
        }
    }
}

/* The rows and columns of one image, or of its padding, that pixels of one row or of whole rows read. */
typedef struct {
    int64_t top, rows, left, columns;
} window;

static window window_of(const qk_conv_call *call, int64_t first, int64_t pixels) {
    const int64_t width = call->out[2], row = first / width, from = first % width, one_row = from + pixels <= width;
    const int64_t last = (first + pixels - 1) / width, reach = (call->w->kernel[1] - 1) * call->dilation[1] + 1;
    return (window){row % call->out[1] * call->stride[1] - call->pad[1], (last - row) * call->stride[1] + reach,
                    (one_row ? from : 0) * call->stride[2] - call->pad[2],
                    ((one_row ? pixels : width) - 1) * call->stride[2] + call->w->kernel[2]};
}

int64_t qk_conv_lines_bytes(const qk_conv_call *call, int64_t first, int64_t pixels) {
    const window v = window_of(call, first, pixels);
    return v.rows * v.columns * call->w->channels + QK_CONV_SLACK;
}

void qk_conv_lines(const qk_conv_call *call, int64_t image, int64_t first, int64_t pixels, uint8_t *memory, qk_conv_source *s) {
    const int64_t channels = call->w->channels;
    const window v = window_of(call, first, pixels);
    const int64_t pitch = v.columns * channels;
    const int64_t from = smaller(larger(-v.left, 0), v.columns), to = larger(smaller(call->in[2] - v.left, v.columns), from);
    for (int64_t r = 0; r < v.rows; r++) {
        const int64_t h = v.top + r;
        const int exists = h >= 0 && h < call->in[1] && from < to;
        uint8_t *out = memory + r * pitch;
        if (!exists) {
            memset(out, call->x_zero, (size_t)pitch);
            continue;
        }
        memset(out, call->x_zero, (size_t)(from * channels));
        copy_run(call, call->x + image * call->x_batch_stride + h * call->x_stride[1] + (v.left + from) * call->x_stride[2],
                 to - from, out + from * channels);
        memset(out + to * channels, call->x_zero, (size_t)((v.columns - to) * channels));
    }
    memset(memory + v.rows * pitch, 0, QK_CONV_SLACK);
    s->stride[2] = channels;
    s->stride[1] = pitch;
    s->base = memory + (first % call->out[2] * call->stride[2] - call->pad[2] - v.left) * channels;
}

void qk_conv_gather(const qk_conv_call *call, const qk_conv_source *s, int64_t first, int64_t pixels, uint8_t *rows,
                    int64_t stride) {
    const qk_packed_conv *w = call->w;
    const int64_t *kernel = w->kernel, line = qk_conv_padded_line(w), padding = line - qk_conv_line(w);
    FOR_EACH_ROW(call, first, pixels, p, run, origin) {
        for (int64_t k = 0; k < kernel[0] * kernel[1]; k++) {
            const int64_t d = origin[0] + k / kernel[1] * call->dilation[0], h = origin[1] + k % kernel[1] * call->dilation[1];
            const int exists = d >= s->low[0] && d < s->high[0] && h >= s->low[1] && h < s->high[1];
            const uint8_t *x = s->base + (exists ? (d - s->low[0]) * s->stride[0] + (h - s->low[1]) * s->stride[1] : 0);
            for (int64_t i = 0; i < run; i++) {
                uint8_t *out = rows + (p + i) * stride + k * line;
                for (int64_t kw = 0; kw < kernel[2]; kw++, out += w->channels) {
                    const int64_t column = origin[2] + i * call->stride[2] + kw * call->dilation[2];
                    if (!exists || column < s->low[2] || column >= s->high[2]) memset(out, call->x_zero, (size_t)w->channels);
                    else memcpy(out, x + (column - s->low[2]) * w->channels, (size_t)w->channels);
                }
                memset(out, 0, (size_t)padding); /* of no weight, but of the sums of rows */
            }
        }
    }
}
