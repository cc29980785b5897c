# Which instruction sets exist, and which one the dispatch table serves.
import os

from quantkit.errors import UnsupportedISA

cdef extern from "qk_isa.h" nogil:
    ctypedef int qk_isa
    int QK_ISA_COUNT
    const char *qk_isa_name(int isa)
    int qk_isa_from_name(const char *name)
    uint32_t qk_isa_detected()

cdef extern from "qk_dispatch.h" nogil:
    ctypedef struct qk_kernel_row:
        const char *family
        const char *slot
        int isa
    const qk_kernel_row *qk_kernel_rows(int *count)
    void qk_use_isa(int isa)
    int qk_active_isa()


def isas():
    """Names of the instruction sets that this build has kernels for and this CPU runs, best last."""
    cdef uint32_t found = qk_isa_detected()
    return tuple([qk_isa_name(i).decode() for i in range(QK_ISA_COUNT) if found >> i & 1])


def active_isa():
    """Name of the instruction set in use."""
    return qk_isa_name(qk_active_isa()).decode()


def use_isa(name):
    """Switch all kernels to one instruction set and return the name of the one before. For tests and benchmarks.

    Raises
    ------
    UnsupportedISA
        When the name is unknown, or this CPU does not have it.
    """
    cdef int isa = qk_isa_from_name(name.encode("utf-8", "replace")) if isinstance(name, str) else -1
    if isa < 0 or not qk_isa_detected() >> isa & 1:
        what = "is not on this CPU" if isa >= 0 else "is unknown"
        raise UnsupportedISA(f"QUANTKIT_ISA: instruction set {name!r} {what}; choose one of {', '.join(isas())}")
    before = active_isa()
    qk_use_isa(isa)
    return before


def kernels():
    """Every kernel of this build as (family, slot, isa), in the order of the one list that makes them."""
    cdef int count
    cdef const qk_kernel_row *rows = qk_kernel_rows(&count)
    return tuple([(rows[i].family.decode(), rows[i].slot.decode(), qk_isa_name(rows[i].isa).decode())
                  for i in range(count)])


use_isa(os.environ.get("QUANTKIT_ISA") or isas()[-1])
