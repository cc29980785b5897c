"""Write docs/api.md: every public name with its parameters and the first sentence of its docstring.

``python docs/make_api.py`` after a change; a test compares.
"""

import inspect
from pathlib import Path
from typing import Any

import quantkit as qk

PAGE = Path(__file__).with_name("api.md")
HEAD = """# Every public name

Written by `python docs/make_api.py` from the docstrings, which say more: `help(qk.quantize_model)`. `qk` is `quantkit`.
"""
GROUPS = {
    "Jobs": (
        "quantize_model",
        "compare_models",
        "inspect_model",
        "quantize_weights",
        "open_weights",
        "dequantize_weights",
        "process_images",
        "open_images",
        "predict_images",
        "read_image",
        "write_image",
        "save",
        "load",
    ),
    "Tensors": (
        "quantize",
        "empty",
        "full",
        "randint",
        "from_buffer",
        "from_numpy",
        "from_dlpack",
        "as_tensor",
        "matmul",
        "conv2d",
        "conv_transpose2d",
        "choose_qparams",
        "QParams",
        "QDType",
        "quint8",
        "qint8",
        "QTensor",
        "QUInt8Storage",
        "Array",
        "ByteStorage",
    ),
    "Streams": (
        "Stream",
        "stream",
        "StreamContext",
        "StreamPool",
        "Event",
        "current_stream",
        "default_stream",
        "profile",
    ),
    "Modules": ("ops", "cpu", "cuda", "errors"),
}


def shown_default(value: Any) -> str:
    """A function or dtype by its name, which has no address of this process in it."""
    return getattr(value, "__name__", "").lstrip("_") or repr(value)


def parameters(value: Any) -> str:
    """The names that a caller gives, defaults included, without types."""
    kinds = inspect.Parameter
    shown: list[str] = []
    keyword_only = False
    for name, parameter in inspect.signature(value).parameters.items():
        if name in ("self", "cls"):
            continue
        if parameter.kind is kinds.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            if not any(text.startswith("*") for text in shown):
                shown.append("*")
        star = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is kinds.empty else f"={shown_default(parameter.default)}"
        shown.append(f"{star}{name}{default}")
    return f"({', '.join(shown)})"


def sentence(value: Any) -> str:
    """The first paragraph of the docstring, as one line."""
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def entry(name: str, value: Any) -> str:
    is_callable = callable(value) and not isinstance(value, qk.QDType)
    return f"- `{name}{parameters(value) if is_callable else ''}`: {sentence(value)}"


def members(kind: type) -> list[str]:
    """The public members that this class defines itself, or inherits from a class that is not public."""
    lines = []
    for name in dict.fromkeys(name for base in kind.__mro__ for name in vars(base)):
        home = next(base for base in kind.__mro__ if name in vars(base))
        public_elsewhere = home is not kind and home.__name__ in qk.__all__
        if name.startswith("_") or public_elsewhere or home.__module__.split(".")[0] != "quantkit":
            continue
        member = inspect.getattr_static(kind, name)
        if isinstance(member, property) or not callable(getattr(kind, name)):
            if inspect.getdoc(member):
                lines.append(f"  - `.{name}`: {sentence(member)}")
        else:
            lines.append(f"  - `.{name}{parameters(getattr(kind, name))}`: {sentence(getattr(kind, name))}")
    return lines


def page() -> str:
    lines = [HEAD]
    for group, names in GROUPS.items():
        lines.append(f"## {group}\n")
        for name in names:
            value = getattr(qk, name)
            lines.append(entry(f"qk.{name}", value))
            if inspect.isclass(value) and not issubclass(value, BaseException):
                lines += members(value)
            elif inspect.ismodule(value):
                inside = getattr(value, "__all__", None) or [
                    n
                    for n, v in vars(value).items()
                    if not n.startswith("_") and getattr(v, "__module__", None) == value.__name__
                ]
                for inner in inside:
                    member = getattr(value, inner)
                    shown = "" if inspect.isclass(member) else parameters(member)
                    lines.append(f"  - `qk.{name}.{inner}{shown}`: {sentence(member)}")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
