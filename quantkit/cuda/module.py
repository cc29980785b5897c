"""The kernels of the .cu files: compiled by NVRTC when a GPU is first used, and kept on disk."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from quantkit.cuda import driver
from quantkit.errors import CudaError, CudaUnavailable

if TYPE_CHECKING:
    import ctypes

    from quantkit.cuda.driver import Device

FILES = ("arithmetic.cu", "elements.cu", "statistics.cu", "rows.cu", "products.cu", "depthwise.cu")
PRODUCT_SHARED = 3 * 2 * 128 * 64 + 128 * 32  # bytes: the stages of a product, and what it knows of its rows
_COMPILERS = ("cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")


@functools.cache
def source() -> str:
    """Return what is compiled."""
    return "".join(Path(__file__).with_name(name).read_text() for name in FILES)


def compile_for(arch: str) -> bytes:
    """Return the cubin for an architecture such as "sm_90"; needs no GPU.

    Raises
    ------
    CudaUnavailable
        When NVRTC is not installed or does not know the architecture.
    CudaError
        When it refuses the source; has its log.
    """
    try:
        from cuda.core import Program, ProgramOptions
    except ImportError as error:
        raise CudaUnavailable(f"CUDA kernels cannot be compiled: {error}; {driver.INSTALL}") from error
    options = ProgramOptions(name="quantkit", arch=arch, std="c++17", fma=False)
    try:
        return bytes(Program(source(), "c++", options).compile("cubin").code)
    except RuntimeError as error:
        if "NotFound" in type(error).__name__:
            raise CudaUnavailable(
                f"CUDA kernels cannot be compiled, NVRTC is missing: {error}; {driver.INSTALL}"
            ) from error
        raise CudaError(f"NVRTC cannot compile the kernels for {arch}: {error}") from error
    except Exception as error:  # cuda-core's own errors have no public base
        raise CudaError(f"NVRTC cannot compile the kernels for {arch}: {error}") from error


def cache_folder() -> Path:
    """Return where compiled kernels are kept: QUANTKIT_CACHE, else the user's cache folder."""
    given = os.environ.get("QUANTKIT_CACHE")
    if given:
        return Path(given)
    home = Path.home()
    base = (
        home / "Library" / "Caches"
        if sys.platform == "darwin"
        else Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    )
    return base / "quantkit"


def _compiler() -> str:
    found = []
    for name in _COMPILERS:
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found)


def cubin(arch: str) -> bytes:
    """Return the cubin for an architecture, from the cache where it is there.

    A file is named by what it was made of, and appears complete or not at all. A cache that cannot be read or written
    is no error.
    """
    name = hashlib.sha256("\0".join((source(), arch, _compiler())).encode()).hexdigest()[:32]
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: no home folder
        path = cache_folder() / f"kernels-{arch}-{name}.cubin"
        if path.is_file() and (image := path.read_bytes()):
            return image
    image = compile_for(arch)
    with contextlib.suppress(OSError, RuntimeError):
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(image)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
    return image


class Kernels:
    """The kernels on one GPU, whose context is current."""

    def __init__(self, device: Device) -> None:
        self._module = driver.load(cubin(device.arch))
        self._functions: dict[str, int] = {}

    def launch(
        self, name: str, grid: tuple[int, int, int], block: int, argument: ctypes.Structure, stream: int
    ) -> None:
        """Launch a kernel on `stream`."""
        shared = PRODUCT_SHARED if name.startswith("product") else 0
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = driver.function(self._module, name, shared)
        driver.launch(function, grid, block, shared, stream, argument)


@functools.cache
def kernels(device: Device) -> Kernels:
    """Return the kernels on a GPU, whose context is current; they are loaded once."""
    return Kernels(device)
