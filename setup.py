"""The one extension module; all metadata lives in setup.cfg.

No -march flag is given: every kernel carries its instruction set in a function attribute, so one binary runs on
every CPU of its architecture and picks its kernels when it is loaded.
"""

import os
from glob import glob

from setuptools import Extension, setup

HERE = "quantkit/_kernels"

# -ffp-contract=off: the compiler must not fuse a multiply and an add, the numbers are a contract.
# -fno-math-errno, -fno-trapping-math: change no result; they let selects become min/max and conversions stay inline.
COMPILE = ["-std=gnu11", "-O3", "-g0", "-fvisibility=hidden"]
COMPILE += ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
if "clang" not in os.environ.get("CC", ""):
    # gcc's partial redundancy elimination spills accumulators inside the inner loops; clang has no such flag.
    COMPILE += ["-fno-tree-pre"]
LINK: list[str] = []
if os.environ.get("QUANTKIT_SANITIZE"):
    SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]
    COMPILE = [*COMPILE, "-O1", "-g1", *SANITIZE]
    LINK = SANITIZE

setup(
    ext_modules=[
        Extension(
            "quantkit._kernels._core",
            sources=[f"{HERE}/_core.pyx", *sorted(glob(f"{HERE}/csrc/*.c"))],
            depends=sorted(glob(f"{HERE}/*.pxi") + glob(f"{HERE}/csrc/*.[hi]*")),
            include_dirs=[f"{HERE}/csrc"],
            extra_compile_args=COMPILE,
            extra_link_args=LINK,
        )
    ]
)
