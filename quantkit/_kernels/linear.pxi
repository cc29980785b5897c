# resize_linear: one call of the driver of bilinear resizing.
cdef int linear_axis(qk_linear_axis *axis, weights, int64_t length, int64_t count, bint behind) except -1:
    """Point `axis` to the arrays of `weights`, which outlive it; `behind`: the second neighbour is the next one."""
    cdef const int32_t[::1] first = weights[0]
    cdef const int32_t[::1] second = weights[1]
    cdef const int16_t[:, ::1] both = weights[2]
    cdef int64_t i
    if first.shape[0] != count or second.shape[0] != count or both.shape[0] != count or both.shape[1] != 2:
        raise ShapeMismatch(f"wanted two weights for {count} outputs, got {first.shape[0]}, {second.shape[0]}, {both.shape[0]}")
    for i in range(count):
        if not (0 <= first[i] < length and 0 <= second[i] < length):
            raise ShapeMismatch(f"output {i} lies between {first[i]} and {second[i]}, the source has {length}")
        if not (0 <= both[i, 0] <= 2048 and 0 <= both[i, 1] <= 2048 and both[i, 0] + both[i, 1] <= 2049):
            raise ShapeMismatch(f"output {i} has the weights {both[i, 0]} and {both[i, 1]}, wanted shares of 2048")
        if behind and both[i, 1] and second[i] != first[i] + 1:
            raise ShapeMismatch(f"output {i} lies between {first[i]} and {second[i]}, which are no neighbours")
    axis.first, axis.second, axis.weights, axis.count = &first[0], &second[0], &both[0, 0], count
    return 0


def resize_linear(const uint8_t[:, :, ::1] x, uint8_t[:, :, :] y, columns=None, rows=None):
    """y (c, height, width) = x (height, width, c) resized; `columns` and `rows`: (first, second, weights) along each axis.

    x may have 4 bytes a pixel for 3 channels. Without axes y has half the height and width, and means of four pixels.
    """
    cdef qk_call call
    cdef qk_linear_call *linear = &call.linear
    if x.shape[2] not in (1, 3, 4) or y.shape[0] != min(x.shape[2], 3) or not x.shape[0] or not x.shape[1]:
        raise ShapeMismatch("wanted pixels of 1, 3 or 4 bytes, and at least one")
    if not y.shape[1] or not y.shape[2] or y.strides[2] != 1:
        raise ShapeMismatch("wanted planes of at least one pixel, whose rows are contiguous")
    linear.halve = columns is None
    if linear.halve:
        if x.shape[0] != 2 * y.shape[1] or x.shape[1] != 2 * y.shape[2]:
            raise ShapeMismatch(f"{x.shape[1]} x {x.shape[0]} is not twice {y.shape[2]} x {y.shape[1]}")
        linear.columns.count, linear.rows.count = y.shape[2], y.shape[1]
    else:
        linear_axis(&linear.columns, columns, x.shape[1], y.shape[2], True)
        linear_axis(&linear.rows, rows, x.shape[0], y.shape[1], False)
    call.run = qk_run_linear
    linear.x, linear.height, linear.width = &x[0, 0, 0], x.shape[0], x.shape[1]
    linear.pixel, linear.x_stride, linear.channels = x.shape[2], x.strides[0], <int>y.shape[0]
    linear.y, linear.y_plane, linear.y_stride = &y[0, 0, 0], y.strides[0], y.strides[1]
    perform(&call, (x, y, columns, rows))
