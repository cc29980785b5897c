from typing import Any, Self, SupportsIndex, final

def isas() -> tuple[str, ...]: ...
def active_isa() -> str: ...
def use_isa(name: str) -> str: ...
def kernels() -> tuple[tuple[str, str, str], ...]: ...
def affine_plain(x: Any, y: Any, scale: Any, zero_point: Any) -> bool: ...
def affine(
    x: Any,
    y: Any,
    scale: Any,
    zero_point: Any,
    axis: int = -1,
    x_is_bf16: bool = False,
    y_is_bf16: bool = False,
) -> bool: ...
def lookup(x: Any, y: Any, tables: Any, axis: int = -1) -> bool: ...
def histogram(x: Any, low: float, per_unit: float, counts: Any, x_is_bf16: bool = False) -> None: ...
def resize(x: Any, y: Any, columns: tuple[Any, Any, Any], rows: tuple[Any, Any, Any]) -> None: ...
def value_range(x: Any, axis: int = -1, x_is_bf16: bool = False) -> tuple[Any, Any, int]: ...

@final
class Memory:
    @staticmethod
    def heap(size: SupportsIndex, zero: bool = False) -> Memory: ...
    @staticmethod
    def borrow(source: Any, exclusive: bool = False) -> tuple[Memory, int]: ...
    @staticmethod
    def map(
        fd: int, offset: int, size: SupportsIndex, shared: bool, writable: bool, origin: object, may_shrink: bool
    ) -> Memory: ...
    def prefault(self) -> None: ...
    nbytes: int
    writable: bool
    shared: bool
    resizable: bool
    fd: int
    offset: int
    origin: Any
    where: str

class StorageBase:
    def __new__(cls, memory: Memory) -> Self: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    def _check_free(self, what: str) -> None: ...
    def _move(self, target: Memory, source: Memory, what: str) -> bool: ...
    _memory: Memory
    _exports: int
    def _get(self, index: SupportsIndex) -> int: ...
    def _set(self, index: SupportsIndex, value: int) -> None: ...
    def data_ptr(self) -> int: ...

@final
class ElementType:
    def __new__(cls, name: str, dtype: Any, wire: Any) -> ElementType: ...
    name: str
    dtype: Any
    wire: Any
    itemsize: int

class ArrayBase:
    def __buffer__(self, flags: int, /) -> memoryview: ...
    _bytes: Any
    _type: ElementType
    shape: tuple[int, ...]
    _offset: int
    size: int
    ndim: int
    strides: tuple[int, ...]
    _contiguous: bool
    def data_ptr(self) -> int: ...
    def _reshape_in_place(self, shape: tuple[int, ...]) -> None: ...
    def _view(self, part: Any) -> Self | None: ...
    @classmethod
    def _make(
        cls,
        storage: StorageBase,
        type: ElementType,
        shape: tuple[int, ...],
        offset: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> Self: ...

@final
class Wire:
    def __new__(cls, array: ArrayBase) -> Wire: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class CodesBase:
    def __new__(cls, codes: ArrayBase, *args: Any) -> Self: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    _codes: Any

def set_num_threads(threads: int) -> None: ...
def num_threads() -> int: ...

class PackedMatmul:
    is_signed: bool
    nbytes: int
    plans: dict[Any, MatmulPlan]
    def __init__(self, b: Any) -> None: ...
    @staticmethod
    def to_come(k: int, n: int, is_signed: bool) -> PackedMatmul: ...
    @property
    def shape(self) -> tuple[int, int]: ...

class MatmulPlan:
    def __init__(
        self,
        b: PackedMatmul,
        a_is_signed: bool,
        a_zero_point: int,
        b_zero_point: Any,
        bias: Any,
        out: str,
        scale: Any,
        zero_point: int = 0,
        low: int = 0,
        high: int = 255,
        table: Any = None,
    ) -> None: ...
    def run(
        self,
        a: Any,
        out: Any,
        a_zero_points: Any = None,
        residual: Any = None,
        own_ratio: float = 0,
        own_zero_point: int = 0,
        residual_ratio: float = 0,
        residual_zero_point: int = 0,
        threads: int = 0,
    ) -> None: ...
    def run_plain(self, a: Any, out: Any) -> bool: ...
    def run_batch(self, a: Any, b: Any, out: Any, a_zero_points: Any = None) -> None: ...

class PackedTaps:
    is_signed: bool
    nbytes: int
    def __init__(
        self,
        matrices: Any,
        kernel: tuple[int, ...],
        channels: int,
        group: int,
        form: str,
        order: Any = None,
        square: int = 0,
    ) -> None: ...

class ConvPlan:
    def __init__(
        self,
        w: PackedTaps,
        x_is_signed: bool,
        x_zero_point: int,
        w_zero_point: Any,
        bias: Any,
        out: str,
        scale: Any,
        zero_point: int = 0,
        low: int = 0,
        high: int = 255,
        table: Any = None,
    ) -> None: ...
    def run(
        self,
        x: Any,
        out: Any,
        strides: tuple[int, ...],
        pads: tuple[int, ...],
        dilations: tuple[int, ...],
        residual: Any = None,
        own_ratio: float = 0,
        own_zero_point: int = 0,
        residual_ratio: float = 0,
        residual_zero_point: int = 0,
        threads: int = 0,
    ) -> None: ...

def call_key(values: tuple[Any, ...]) -> list[Any] | None: ...
