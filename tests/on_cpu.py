"""The kernels as host C++, and a CUDA driver that runs it: what tests use where there is no GPU."""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from quantkit.cuda import module

HEADER = Path(__file__).parent / "cuda" / "on_cpu.h"


def compiler():
    return shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")


def missing():
    """Why the kernels cannot run on this machine's CPU, or None."""
    if compiler() is None:
        return "no C++ compiler"
    return (
        None if os.uname().machine == "x86_64" else f"the coroutines are written for x86_64, not {os.uname().machine}"
    )


@functools.cache
def library(tensor_cores=True):
    """Compile the kernels, with the tensor cores' instructions or for an older part; kept in the temporary folder."""
    source = f'#include "{HEADER}"\n{module.source()}'
    flags = ["-O2", "-std=c++17", "-fPIC", "-shared", f"-DTENSOR_CORES={int(tensor_cores)}", "-ffp-contract=off"]
    flags += ["-Wall", "-Wno-unknown-pragmas", "-Werror"]
    name = hashlib.sha256("\0".join([source, HEADER.read_text(), *flags]).encode()).hexdigest()[:24]
    path = Path(tempfile.gettempdir()) / f"quantkit-kernels-{os.getuid()}-{name}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory() as folder:
            text, made = Path(folder) / "kernels.cpp", Path(folder) / "kernels.so"
            text.write_text(source)
            done = subprocess.run(
                [compiler(), *flags, "-o", made, text], capture_output=True, text=True, check=False, timeout=120
            )
            assert done.returncode == 0, done.stderr
            beside = path.with_suffix(f".{os.getpid()}")
            shutil.copyfile(made, beside)
            os.replace(beside, path)
    loaded = ctypes.CDLL(str(path))
    loaded.qk_launch.restype = loaded.qk_kernel_name.restype = ctypes.c_char_p
    loaded.qk_kernel_bytes.restype = ctypes.c_long
    return loaded


def launch(name, grid, block, argument, shared=0, tensor_cores=True):
    """Run a kernel now; an error says what it did that the hardware would not do."""
    address = argument if isinstance(argument, int) else ctypes.addressof(argument)
    fault = library(tensor_cores).qk_launch(
        name.encode(), *grid, block, ctypes.c_size_t(shared), ctypes.c_void_p(address)
    )
    if fault:
        raise AssertionError(f"{name}: {fault.decode()}")
