"""What this CPU offers to the kernels, and what they use.

``QUANTKIT_ISA=scalar|avx2|avx512|...`` in the environment forces one instruction set, ``QUANTKIT_NUM_THREADS`` the
number of threads; both are read once, at the first use of the kernels.
"""

from quantkit._kernels import active_isa, isas, num_threads
from quantkit._kernels.threads import usable_cpus

__all__ = ["active_isa", "isas", "num_threads", "usable_cpus"]
