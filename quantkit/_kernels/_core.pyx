# cython: language_level=3
"""The one extension module: checks arguments, then calls the C drivers without the GIL. One .pxi a family."""

include "isa.pxi"
include "memory.pxi"
include "strided.pxi"
include "operands.pxi"
include "affine.pxi"
include "lookup.pxi"
include "statistics.pxi"
include "matmul.pxi"
include "conv.pxi"
include "resize.pxi"
