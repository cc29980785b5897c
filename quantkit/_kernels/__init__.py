"""The compiled kernels, as the rest of quantkit sees them."""

try:
    from quantkit._kernels._core import active_isa, affine, affine_plain, histogram, isas, kernels, use_isa, value_range
except ModuleNotFoundError as error:
    if error.name != "quantkit._kernels._core":
        raise
    raise ImportError(
        "quantkit's compiled kernels are missing here: this is a source folder that was not built. "
        "Build it in place with `pip install -e .`, or install it with `pip install .` and start Python elsewhere."
    ) from None

__all__ = ["active_isa", "affine", "affine_plain", "histogram", "isas", "kernels", "use_isa", "value_range"]
