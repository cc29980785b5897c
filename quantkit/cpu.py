"""What this CPU offers to the kernels, and what they use.

``QUANTKIT_ISA=scalar|avx2|avx512|...`` in the environment forces one instruction set; it is read once, at import.
"""

from quantkit._kernels import active_isa, isas

__all__ = ["active_isa", "isas"]
