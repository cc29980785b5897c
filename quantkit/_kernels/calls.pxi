# The one struct of a verb call, as the families fill it and as streams keep it.
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
)
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uintptr_t

from quantkit.errors import InvalidArgument, OutOfMemory, StreamCancelled, StreamError, StreamForked

cdef extern from "qk_types.h" nogil:
    ctypedef int qk_dtype
    int QK_U8, QK_S8, QK_I32, QK_F16, QK_BF16, QK_F32, QK_F64

cdef extern from "qk_layout.h" nogil:
    int QK_MAX_NDIM
    ctypedef struct qk_layout:
        int ndim
        int axis
    int qk_layout_init(qk_layout *l, int ndim, const int64_t *shape, int operands, const int64_t **strides, int axis)

cdef extern from "qk_affine.h" nogil:
    ctypedef struct qk_affine_call:
        qk_layout layout
        const char *x
        char *y
        int x_dtype
        int y_dtype
        const float *scale
        const int32_t *zero_point
        const float *zero_point_f
        float scale_value
        float zero_point_f_value
        int32_t zero_point_value
        int has_float_zero_point
    int qk_affine_supported(int x_dtype, int y_dtype)

cdef extern from "qk_copy.h" nogil:
    ctypedef struct qk_copy_call:
        qk_layout layout
        const char *x
        char *y
        int64_t itemsize

cdef extern from "qk_dynamic.h" nogil:
    ctypedef struct qk_dynamic_call:
        qk_affine_call affine
        float *scale
        uint8_t *zero_point
        int empty

cdef extern from "qk_statistics.h" nogil:
    ctypedef struct qk_range:
        double lo
        double hi
        int64_t nonfinite
    ctypedef struct qk_statistics_call:
        qk_layout layout
        const char *x
        int dtype
        qk_range *ranges
        float lo
        float per_unit
        int32_t bins
        int64_t *counts

cdef extern from "qk_matmul.h" nogil:
    ctypedef struct qk_packed_matmul:
        int64_t k
        int64_t n
        int8_t *data
        int32_t *colsum
        int half_range
    int64_t qk_padded_columns(int64_t n)
    int64_t qk_packed_bytes(int64_t k, int64_t n)
    void qk_pack_matmul(qk_packed_matmul *packed, const char *b, int64_t row_stride, int64_t column_stride, int flip)
    int QK_OUT_I32, QK_OUT_U8, QK_OUT_S8, QK_OUT_F32
    ctypedef struct qk_epilogue:
        int out
        const int32_t *start
        const int32_t *b_zero
        const int32_t *a_zero
        const int32_t *colsum
        const float *scale
        const float *bias
        int32_t zero_point
        int32_t low
        int32_t high
        const uint8_t *table
        const uint8_t *residual
        int64_t residual_stride
        float own_ratio
        float residual_ratio
        int32_t own_zero_point
        int32_t residual_zero_point
        int32_t residual_is_signed
    ctypedef struct qk_matmul_call:
        const uint8_t *a
        int64_t a_stride
        int64_t a_column_stride
        int64_t m
        int flip_a
        int32_t a_zero_point
        const qk_packed_matmul *b
        void *c
        int64_t c_stride
        qk_epilogue e
        int threads
    ctypedef struct qk_matmul_batch:
        qk_matmul_call one
        int64_t count
        const int64_t *a_offsets
        const int64_t *b_offsets
        int64_t c_offset
        const char *b
        int64_t b_row_stride
        int64_t b_column_stride
        int flip_b

cdef extern from "qk_conv.h" nogil:
    int QK_SPATIAL
    int QK_CONV_TAPS, QK_CONV_LINES, QK_CONV_DEPTHWISE
    ctypedef struct qk_packed_conv:
        int64_t channels
        int64_t outputs
        int64_t group
        int64_t kernel[3]
        int form
        const qk_packed_matmul *packed
        int square
        const int32_t *order
    ctypedef struct qk_conv_call:
        const uint8_t *x
        int64_t x_batch_stride
        int64_t x_channel_stride
        int64_t x_stride[3]
        int flip
        int32_t x_zero
        int64_t batch
        int64_t size_in "in"[3]
        int64_t size_out "out"[3]
        int64_t stride[3]
        int64_t dilation[3]
        int64_t pad[3]
        const qk_packed_conv *w
        void *y
        int64_t y_batch_stride
        int64_t y_channel_stride
        int64_t y_stride[3]
        int64_t residual_batch_stride
        qk_epilogue e
        int threads

cdef extern from "qk_coded.h" nogil:
    ctypedef struct qk_account:
        pass
    ctypedef struct qk_coded_call:
        const char *x
        int dtype
        char *codes
        int is_signed
        int64_t outer
        int64_t channels
        int64_t inner
        int64_t parameters
        const float *scale
        const int32_t *zero_point
        qk_account *account
    uint32_t qk_crc32(const void *x, int64_t n, uint32_t crc)

cdef extern from "qk_resize.h" nogil:
    ctypedef struct qk_resize_axis:
        const int32_t *first
        const int16_t *high
        const int16_t *low
        int64_t count
        int64_t taps
    ctypedef struct qk_resize_call:
        const uint8_t *x
        int64_t height
        int64_t width
        int64_t pixel
        int64_t x_stride
        uint8_t *y
        int64_t y_plane
        int64_t y_stride
        qk_resize_axis columns
        qk_resize_axis rows

cdef extern from "qk_lookup.h" nogil:
    ctypedef struct qk_lookup_call:
        qk_layout layout
        const uint8_t *x
        uint8_t *y
        const uint8_t *tables

cdef extern from "qk_linear.h" nogil:
    ctypedef struct qk_linear_axis:
        const int32_t *first
        const int32_t *second
        const int16_t *weights
        int64_t count
    ctypedef struct qk_linear_call:
        const uint8_t *x
        int64_t height
        int64_t width
        int64_t pixel
        int64_t x_stride
        int channels
        uint8_t *y
        int64_t y_plane
        int64_t y_stride
        qk_linear_axis columns
        qk_linear_axis rows
        int halve

cdef extern from "qk_rnn.h" nogil:
    int QK_CELL_RNN, QK_CELL_LSTM, QK_CELL_GRU, QK_ACTIVATIONS
    ctypedef struct qk_activation:
        int kind
        float alpha
        float beta
    ctypedef struct qk_rnn_weights:
        int64_t k
        int64_t n
        const qk_packed_matmul *codes
        const float *scale
        const int32_t *zero
        const float *values
    ctypedef struct qk_rnn_direction:
        qk_rnn_weights w
        qk_rnn_weights r
        const float *bias
        const float *bias_h
        const float *peephole
        qk_activation activation[3]
        int reverse
    ctypedef struct qk_rnn_call:
        int cell
        int linear_before_reset
        int input_forget
        float clip
        int64_t seq
        int64_t batch
        int64_t input
        int64_t hidden
        int directions
        const qk_rnn_direction *direction
        const char *x
        const char *h0
        const char *c0
        int64_t x_t, x_b, x_i, h0_d, h0_b, c0_d, c0_b
        const int32_t *lengths
        char *y
        char *y_h
        char *y_c
        int64_t y_t, y_d, y_b, yh_d, yh_b, yc_d, yc_b
        int threads
    void qk_pack_floats(float *packed, const float *w, int64_t stride, int64_t k, int64_t n)

cdef extern from "qk_call.h" nogil:
    ctypedef struct qk_call:
        int (*run)(const qk_call *call) noexcept nogil
        const char *fault
        qk_affine_call affine
        qk_copy_call copy
        qk_dynamic_call dynamic
        qk_statistics_call statistics
        qk_lookup_call lookup
        qk_matmul_call matmul
        qk_matmul_batch batch
        qk_conv_call conv
        qk_coded_call coded
        qk_resize_call resize
        qk_linear_call linear
        qk_rnn_call rnn
    int qk_run_affine(const qk_call *call) noexcept
    int qk_run_copy(const qk_call *call) noexcept
    int qk_run_dynamic(const qk_call *call) noexcept
    int qk_run_range(const qk_call *call) noexcept
    int qk_run_histogram(const qk_call *call) noexcept
    int qk_run_lookup(const qk_call *call) noexcept
    int qk_run_matmul(const qk_call *call) noexcept
    int qk_run_batch(const qk_call *call) noexcept
    int qk_run_conv(const qk_call *call) noexcept
    int qk_run_coded(const qk_call *call) noexcept
    int qk_run_resize(const qk_call *call) noexcept
    int qk_run_linear(const qk_call *call) noexcept
    int qk_run_rnn(const qk_call *call) noexcept

cdef extern from "qk_stream.h" nogil:
    ctypedef struct qk_stream:
        pass
    ctypedef struct qk_task:
        pass
    ctypedef struct qk_hazards:
        pass
    ctypedef int qk_state
    int QK_QUEUED, QK_RUNNING, QK_DONE, QK_FAILED, QK_POISONED, QK_CANCELLED, QK_FORKED
    int QK_READS, QK_WRITES_ALL, QK_WRITES_PART
    ctypedef struct qk_access:
        qk_hazards *hazards
        int use
    ctypedef struct qk_outcome:
        qk_state state
        int status
        const char *fault
        void *cause
        int64_t queued
        int64_t started
        int64_t finished
    ctypedef qk_state qk_owner_fn(void *owner) noexcept nogil
    void qk_stream_hooks(void (*finished)() noexcept nogil, void (*left)() noexcept nogil)
    qk_stream *qk_stream_new(const char *name, int threads)
    void qk_stream_drop(qk_stream *stream)
    void qk_stream_close(qk_stream *stream)
    int qk_stream_cancel(qk_stream *stream)
    qk_task *qk_stream_tail(qk_stream *stream)
    int qk_streams_stop(int64_t nanoseconds)
    qk_task *qk_task_new(void *owner, qk_owner_fn *run_owner)
    void qk_task_ref(qk_task *task)
    void qk_task_unref(qk_task *task)
    int qk_task_add(qk_task *task, const qk_call *call)
    int qk_task_after(qk_task *task, qk_task *other)
    int qk_stream_push(qk_stream *stream, qk_task *task, const qk_access *accesses, int count)
    int qk_task_wait(qk_task *task, int64_t nanoseconds)
    qk_outcome qk_task_outcome(qk_task *task)
    int qk_on_worker()
    qk_task *qk_hazards_next(const qk_hazards *hazards, int writes)
    void *qk_hazards_failed(const qk_hazards *hazards)
    int qk_hazards_clear(qk_hazards *hazards)
    qk_task *qk_take_finished()
    qk_task *qk_task_next(const qk_task *task)
    void *qk_task_owner(const qk_task *task, int *dead)
    void qk_task_drop_owner(qk_task *task)

cdef extern from *:
    """
    /* The Task that this thread is recording, borrowed; NULL where verbs run at once. */
    static _Thread_local void *qk_recorder;
    """
    void *qk_recorder


cdef int perform(qk_call *call, object operands) except -1:
    """Run a call now; or, while a verb is recorded for a stream, keep it, and `operands` alive with it."""
    cdef int status
    if qk_recorder != NULL:
        return (<Task>qk_recorder).record(call, operands)
    with nogil:
        status = call.run(call)
    if status:
        raise failure(status, call.fault)
    return 0


cdef object failure(int status, const char *fault):
    """The error for what a call returned."""
    if status < 0:
        return OutOfMemory("no memory for the scratch space of a kernel")
    return InvalidArgument(fault.decode() % status)
