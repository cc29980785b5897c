"""Reads the pickles of torch without executing them.

A pickle is a program for a small stack machine. This is such a machine that can only build plain containers and
descriptions of tensors: a global is a pair of names, never an object of Python's, and the few calls that are
understood are carried out here. There is nothing that a pickle could reach, whatever it says.
"""

from __future__ import annotations

import pickletools
import warnings
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, NoReturn

from quantkit.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# torch's typed storages and dtypes -> safetensors dtype; a name of another kind is refused where it is met.
STORAGES = {
    "FloatStorage": "F32",
    "DoubleStorage": "F64",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
SCALARS = {
    "float32": "F32",
    "float64": "F64",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
UNTYPED = "bytes"


@dataclass(frozen=True, eq=False)
class Storage:
    """A run of bytes that the file keeps under `key`; `count` elements of `dtype` (`UNTYPED`: of one byte)."""

    key: str
    dtype: str
    count: int


@dataclass(frozen=True, eq=False)
class Tensor:
    """A view of a storage; offset and strides count elements."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Global:
    """A name that the pickle asked for."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class _Mark:
    pass


_MARK = _Mark()
_REBUILD = {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3"}
_PARAMETER = {"_rebuild_parameter", "_rebuild_parameter_with_state"}
_LITERALS = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
}  # fmt: skip
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_KEYS = (str, int, float, bytes, type(None))  # bool is an int; a tuple could be nested beyond what hash() survives


def _allowed(found: Global) -> bool:
    module, name = found.module, found.name
    if module == "torch":
        return name in STORAGES or name in SCALARS or name == "Size"
    if module == "torch._utils":
        return name in _REBUILD or name in _PARAMETER
    return (module, name) in {("collections", "OrderedDict"), ("torch.storage", "UntypedStorage")}


class Machine:
    """Interprets one pickle.

    Parameters
    ----------
    where : str
        How messages call the pickle.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._storages: dict[str, Storage] = {}
        self._at = 0

    def run(self, file: IO[bytes]) -> Any:
        """Return what the pickle at the file's position describes; the file is left behind it.

        Raises
        ------
        FormatError
            For a global that is no tensor's and no plain container's, named; for a pickle that is cut short or makes
            no sense.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python would remark on odd escapes in the text of a damaged pickle
                for opcode, argument, at in pickletools.genops(file):
                    self._at = at or 0
                    if opcode.name == "STOP":
                        return self._pop()
                    self._step(opcode.name, argument)
        except FormatError:
            raise
        except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeError, MemoryError) as e:
            text = str(e).partition("\n")[0]
            raise FormatError(
                f"{self._where}: malformed pickle at byte {self._at}: {text or type(e).__name__}"
            ) from None
        raise FormatError(f"{self._where}: malformed pickle: it has no end")

    def _bad(self, what: str) -> NoReturn:
        raise FormatError(f"{self._where}: {what} (byte {self._at} of the pickle)")

    def _step(self, name: str, argument: Any) -> None:
        if name in _LITERALS:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name == "GLOBAL":
            module, _, attribute = argument.partition(" ")
            self._stack.append(self._global(module, attribute))
        elif name in {"PUT", "BINPUT", "LONG_BINPUT"}:
            self._memo[argument] = self._top()
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self._top()
        elif name in {"GET", "BINGET", "LONG_BINGET"}:
            self._stack.append(self._memo[argument])
        elif name not in {"PROTO", "FRAME"}:
            step = _STEPS.get(name)
            if step is None:
                self._bad(f"refused the pickle operation {name}, which could run code")
            step(self)

    # ---------------------------------------------------------------------------------------------- the stack

    def _pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            self._bad("malformed pickle: a value was wanted, and a mark came")
        return value

    def _top(self) -> Any:
        value = self._stack[-1]
        if value is _MARK:
            self._bad("malformed pickle: a value was wanted, and a mark came")
        return value

    def _pop_to_mark(self) -> list[Any]:
        for i in range(len(self._stack) - 1, -1, -1):
            if self._stack[i] is _MARK:
                values = self._stack[i + 1 :]
                del self._stack[i:]
                return values
        self._bad("malformed pickle: no mark")

    def _container(self, kind: type[Any]) -> Any:
        found = self._top()
        if type(found) is not kind:
            self._bad(f"malformed pickle: wanted a {kind.__name__} to fill, got a {type(found).__name__}")
        return found

    def _fill(self, target: dict[Any, Any], pairs: list[tuple[Any, Any]]) -> None:
        for key, value in pairs:
            if not isinstance(key, _KEYS):
                self._bad(f"a key of a dict is a {type(key).__name__}; wanted text or a number")
            target[key] = value

    # ---------------------------------------------------------------------------------------------- operations

    def _mark(self) -> None:
        self._stack.append(_MARK)

    def _discard(self) -> None:
        self._stack.pop()

    def _discard_to_mark(self) -> None:
        self._pop_to_mark()

    def _dup(self) -> None:
        self._stack.append(self._top())

    def _tuple(self, count: int | None) -> None:
        values = self._pop_to_mark() if count is None else [self._pop() for _ in range(count)][::-1]
        self._stack.append(tuple(values))

    def _append(self, several: bool) -> None:
        values = self._pop_to_mark() if several else [self._pop()]
        self._container(list).extend(values)

    def _set_items(self, several: bool) -> None:
        flat = self._pop_to_mark() if several else [self._pop(), self._pop()][::-1]
        self._fill(self._container(dict), _pairs(flat))

    def _dict(self) -> None:
        made: dict[Any, Any] = {}
        self._fill(made, _pairs(self._pop_to_mark()))
        self._stack.append(made)

    def _set(self, frozen: bool) -> None:
        # Their members are never tensors that a name could lead to; a list serves, and needs no hash.
        if frozen:
            self._stack.append(self._pop_to_mark())
        else:
            self._append(True)

    def _global(self, module: str, name: str) -> Global:
        found = Global(module, name)
        if not _allowed(found):
            self._bad(
                f"refused the global {str(found)[:200]!r}: a weight file may hold tensors, dicts, lists, text and "
                "numbers; save the state_dict alone"
            )
        return found

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            self._bad("malformed pickle: a global has no name")
        self._stack.append(self._global(module, name))

    def _reduce(self) -> None:
        arguments, called = self._pop(), self._pop()
        if not isinstance(called, Global) or type(arguments) is not tuple:
            self._bad(f"refused to call a {type(called).__name__}")
        self._stack.append(self._call(called, arguments))

    def _call(self, called: Global, arguments: tuple[Any, ...]) -> Any:
        if called.name == "OrderedDict":
            made: dict[Any, Any] = {}
            for items in arguments[:1]:
                self._fill(made, [(k, v) for k, v in items])
            return made
        if called.name in _REBUILD:
            return self._tensor(called, arguments)
        if called.name in _PARAMETER and arguments and isinstance(arguments[0], Tensor):
            return arguments[0]
        if called.name == "Size" and len(arguments) == 1 and type(arguments[0]) in (tuple, list):
            return tuple(arguments[0])
        self._bad(f"refused to call {called} with {len(arguments)} arguments")

    def _tensor(self, called: Global, arguments: tuple[Any, ...]) -> Tensor:
        storage, offset, shape, strides = arguments[:4] if len(arguments) >= 4 else (None,) * 4
        dtype = storage.dtype if isinstance(storage, Storage) else None
        if called.name == "_rebuild_tensor_v3":
            named = arguments[6] if len(arguments) > 6 else None
            dtype = SCALARS.get(named.name) if isinstance(named, Global) and named.module == "torch" else None
        if not isinstance(storage, Storage) or dtype is None or dtype == UNTYPED:
            self._bad(f"malformed tensor: {called} did not get a storage and a dtype")
        if not _whole((offset,)) or not _whole(shape) or not _whole(strides) or len(shape) != len(strides):
            self._bad("malformed tensor: offset, shape and strides must be whole numbers >= 0, as many of each")
        return Tensor(storage, dtype, offset, shape, strides)

    def _build(self) -> None:
        # torch hangs the versions of modules on a state dict; they are not weights.
        self._pop()
        if type(self._top()) is not dict:
            self._bad(f"refused to set attributes of a {type(self._top()).__name__}")

    def _persistent(self) -> None:
        found = self._pop()
        # A sixth item describes a view of another storage; torch has not written one since 0.4.
        if type(found) is not tuple or len(found) < 5 or found[0] != "storage" or any(v is not None for v in found[5:]):
            self._bad("refused a persistent id that is no plain storage")
        kind, key, _, count = found[1:5]
        dtype = None
        if isinstance(kind, Global):
            dtype = UNTYPED if kind.name == "UntypedStorage" else STORAGES.get(kind.name)
        if dtype is None or not isinstance(key, str) or not _whole((count,)):
            self._bad("malformed storage: wanted its type, key and number of elements")
        made = self._storages.setdefault(key, Storage(key, dtype, count))
        if (made.dtype, made.count) != (dtype, count):
            self._bad(f"storage {key!r} is described in two ways")
        self._stack.append(made)


def _pairs(flat: list[Any]) -> list[tuple[Any, Any]]:
    if len(flat) % 2:
        raise ValueError("a key of a dict has no value")
    return list(zip(flat[::2], flat[1::2], strict=True))


def _whole(values: Any) -> bool:
    return type(values) is tuple and all(type(v) is int and 0 <= v < 1 << 63 for v in values)


_STEPS: Mapping[str, Callable[[Machine], None]] = {
    "MARK": Machine._mark,
    "POP": Machine._discard,
    "POP_MARK": Machine._discard_to_mark,
    "DUP": Machine._dup,
    "EMPTY_LIST": lambda m: m._stack.append([]),
    "EMPTY_DICT": lambda m: m._stack.append({}),
    "EMPTY_SET": lambda m: m._stack.append([]),
    "LIST": lambda m: m._stack.append(m._pop_to_mark()),
    "DICT": Machine._dict,
    "TUPLE": lambda m: m._tuple(None),
    "TUPLE1": lambda m: m._tuple(1),
    "TUPLE2": lambda m: m._tuple(2),
    "TUPLE3": lambda m: m._tuple(3),
    "APPEND": lambda m: m._append(False),
    "APPENDS": lambda m: m._append(True),
    "SETITEM": lambda m: m._set_items(False),
    "SETITEMS": lambda m: m._set_items(True),
    "ADDITEMS": lambda m: m._set(False),
    "FROZENSET": lambda m: m._set(True),
    "STACK_GLOBAL": Machine._stack_global,
    "REDUCE": Machine._reduce,
    "BUILD": Machine._build,
    "BINPERSID": Machine._persistent,
}
