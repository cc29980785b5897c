"""QTensor: an Array of codes plus its QParams, with its arithmetic and factories."""

from quantkit.tensor.factories import (
    as_tensor,
    empty,
    from_buffer,
    from_dlpack,
    from_numpy,
    full,
    quantize,
    randint,
)
from quantkit.tensor.products import conv2d, conv_transpose2d, matmul
from quantkit.tensor.qtensor import QTensor

__all__ = [
    "QTensor",
    "as_tensor",
    "conv2d",
    "conv_transpose2d",
    "empty",
    "from_buffer",
    "from_dlpack",
    "from_numpy",
    "full",
    "matmul",
    "quantize",
    "randint",
]
