# resize: one call of the C driver.
cdef int resize_axis(qk_resize_axis *axis, weights, int64_t length, int64_t count) except -1:
    """Point `axis` to the arrays of `weights`, which outlive it."""
    cdef const int32_t[::1] first = weights[0]
    cdef const int16_t[:, ::1] high = weights[1]
    cdef const int16_t[:, ::1] low = weights[2]
    cdef int64_t i, t
    axis.count, axis.taps = high.shape[0], high.shape[1]
    if axis.count != count or first.shape[0] != count or low.shape[0] != count or low.shape[1] != axis.taps:
        raise ShapeMismatch(f"wanted weights for {count} outputs, got {first.shape[0]}, {high.shape[0]}, {low.shape[0]}")
    if axis.taps % 4 or axis.taps < 4:
        raise ShapeMismatch(f"wanted a multiple of 4 taps, got {axis.taps}")
    for i in range(count):
        if first[i] < 0 or first[i] >= length:
            raise ShapeMismatch(f"weights begin at {first[i]}, the source has {length}")
        for t in range(length - first[i], axis.taps):
            if t >= length - first[i] + 3 or high[i, t] or low[i, t]:
                raise ShapeMismatch(f"weights of output {i} reach beyond the source, which has {length}")
    axis.first, axis.high, axis.low = &first[0], &high[0, 0], &low[0, 0]
    return 0


def resize(const uint8_t[:, :, ::1] x, uint8_t[:, :, ::1] y, columns, rows):
    """y (3, height, width) = x (height, width, 3 or 4) resized; `columns` and `rows`: (first, high, low) along each axis."""
    cdef qk_call call
    if x.shape[2] not in (3, 4) or y.shape[0] != 3 or not x.shape[0] or not x.shape[1] or not y.shape[1] or not y.shape[2]:
        raise ShapeMismatch("wanted pixels of 3 or 4 bytes, and at least one")
    resize_axis(&call.resize.columns, columns, x.shape[1], y.shape[2])
    resize_axis(&call.resize.rows, rows, x.shape[0], y.shape[1])
    call.run = qk_run_resize
    call.resize.x, call.resize.height, call.resize.width = &x[0, 0, 0], x.shape[0], x.shape[1]
    call.resize.pixel, call.resize.x_stride = x.shape[2], x.strides[0]
    call.resize.y, call.resize.y_plane, call.resize.y_stride = &y[0, 0, 0], y.strides[0], y.strides[1]
    perform(&call, (x, y, columns, rows))
