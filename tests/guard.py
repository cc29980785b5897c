"""Arrays that end exactly on an unmapped page, or begin on one: a read or write one byte too far is a crash."""

import ctypes
import mmap

import numpy as np

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def guarded(values, where="end"):
    """Return a copy of the array `values` whose last byte (or first) lies next to a page without access."""
    values = np.ascontiguousarray(values)
    page = mmap.PAGESIZE
    body = -(-max(values.nbytes, 1) // page) * page
    area = mmap.mmap(-1, body + 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for fence in (start, start + page + body):
        if _libc.mprotect(fence, page, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    offset = page + (body - values.nbytes if where == "end" else 0)
    array = np.frombuffer(area, np.uint8, values.nbytes, offset).view(values.dtype).reshape(values.shape)
    array[...] = values
    return array
