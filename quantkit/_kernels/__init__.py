"""The compiled kernels, as the rest of quantkit sees them."""

from quantkit._kernels import threads as _threads

try:
    from quantkit._kernels._core import (
        ArrowPixels,
        ConvPlan,
        KeptCall,
        KeptPlans,
        MatmulPlan,
        PackedFloats,
        PackedMatmul,
        PackedTaps,
        RnnPlan,
        active_isa,
        affine,
        affine_plain,
        copy,
        crc32,
        dynamic_quantize,
        histogram,
        isas,
        kernels,
        lookup,
        num_threads,
        quantize_measured,
        resize,
        resize_linear,
        set_num_threads,
        use_isa,
        value_range,
        write_back,
    )
except ModuleNotFoundError as error:
    if error.name != "quantkit._kernels._core":
        raise
    raise ImportError(
        "quantkit's compiled kernels are missing here: this is a source folder that was not built. "
        "Build it in place with `pip install -e .`, or install it with `pip install .` and start Python elsewhere."
    ) from None

set_num_threads(_threads.from_environment())

__all__ = [
    "ArrowPixels",
    "ConvPlan",
    "KeptCall",
    "KeptPlans",
    "MatmulPlan",
    "PackedFloats",
    "PackedMatmul",
    "PackedTaps",
    "RnnPlan",
    "active_isa",
    "affine",
    "affine_plain",
    "copy",
    "crc32",
    "dynamic_quantize",
    "histogram",
    "isas",
    "kernels",
    "lookup",
    "num_threads",
    "quantize_measured",
    "resize",
    "resize_linear",
    "set_num_threads",
    "use_isa",
    "value_range",
    "write_back",
]
