"""Memory of a GPU, and how bytes get there and back."""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import TYPE_CHECKING, Any

from quantkit.cuda import driver
from quantkit.cuda.queue import Mark, Queue, Work, current_queue, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

STAGE = 4 << 20  # bytes of a piece of pinned memory, of which two serve each GPU
SMALL = 64 << 10  # what the driver stages itself just as fast


class Block:
    """Bytes on a GPU, with an owner and an order.

    Attributes
    ----------
    address, nbytes, index : int
    device : str
        "cuda:N".
    writable, shared : bool
    writer : Mark, or None
        After the last write.
    readers : dict of Mark
        After the last read of each queue since.
    """

    __slots__ = (
        "__weakref__", "_release", "address", "device", "index", "nbytes", "readers", "resizable", "shared", "token",
        "writable", "writer",
    )  # fmt: skip

    def __init__(
        self, index: int, address: int, nbytes: int, release: Callable[[Block], None] | None, *,
        writable: bool = True, shared: bool = False,
    ) -> None:  # fmt: skip
        self.index, self.device, self.address, self.nbytes = index, f"cuda:{index}", address, nbytes
        self.writable, self.shared, self._release = writable, shared, release
        self.writer: Mark | None = None
        self.readers: dict[int, Mark] = {}
        self.resizable = False
        self.token: Any = None

    def marks(self) -> list[Mark]:
        """Return the marks that the last users of the bytes left."""
        return [mark for mark in (self.writer, *self.readers.values()) if mark is not None]

    def wait(self) -> None:
        """Let the host wait for all work on the bytes."""
        wait_for(self.marks())

    def __del__(self) -> None:
        release, self._release = getattr(self, "_release", None), None
        if release is not None:
            # After a fork, or when the interpreter ends, there is no driver, or no module, to take bytes back.
            try:  # noqa: SIM105
                release(self)
            except Exception:
                pass


def allocate(index: int, nbytes: int) -> Block:
    """Return new bytes of unspecified content on a GPU, for the current queue and then for any.

    Raises
    ------
    CudaUnavailable, OutOfMemory
    """
    queue = current_queue(index)
    with queue.device:
        address = queue.device.allocate(max(nbytes, 1), queue.handle)

    def release(block: Block) -> None:
        with queue.device:
            for mark in block.marks():
                queue.wait(mark)
            queue.device.free(address, queue.handle)

    made = Block(index, address, nbytes, release)
    made.resizable, made.writer = True, Mark(queue, Queue.several)
    return made


def borrowed(index: int, address: int, nbytes: int, owner: Any, *, writable: bool = True) -> Block:
    """Return bytes of somebody else, who is kept alive; their writer is the current queue, which waited for them."""

    def release(block: Block) -> None:
        wait_for(block.marks())
        _ = owner

    made = Block(index, address, nbytes, release, writable=writable)
    made.writer = Mark(current_queue(index), Queue.several)
    return made


class _Stage:
    """Two pieces of pinned memory, used in turn."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pieces = [driver.pinned(STAGE) for _ in range(2)]
        self.marks: list[Mark | None] = [None, None]


@functools.cache
def _stage(index: int) -> _Stage:
    with driver.device(index):
        return _Stage()


def upload(block: Block, offset: int, source: int, nbytes: int) -> None:
    """Copy host bytes, whose address is `source`, onto a GPU. They are read before this returns."""
    queue = current_queue(block.index)
    with Work(queue, writes=[block]):
        if nbytes <= SMALL:
            driver.copy(block.address + offset, source, nbytes, queue.handle)
            return
        stage = _stage(block.index)
        with stage.lock:
            for turn, begin in enumerate(range(0, nbytes, STAGE)):
                piece, size = stage.pieces[turn % 2], min(STAGE, nbytes - begin)
                wait_for([stage.marks[turn % 2]])
                ctypes.memmove(piece, source + begin, size)
                driver.copy(block.address + offset + begin, piece, size, queue.handle)
                stage.marks[turn % 2] = Mark(queue, True)


def download(block: Block, offset: int, target: int, nbytes: int) -> None:
    """Copy bytes of a GPU to the host address `target`, and wait for them."""
    queue = current_queue(block.index)
    with Work(queue, reads=[block]):
        if nbytes <= SMALL:
            driver.copy(target, block.address + offset, nbytes, queue.handle)
            driver.synchronize(queue.handle)
            return
        stage = _stage(block.index)
        with stage.lock:
            begins = range(0, nbytes, STAGE)
            for turn, begin in enumerate([*begins, None]):
                if begin is not None:
                    wait_for([stage.marks[turn % 2]])
                    size = min(STAGE, nbytes - begin)
                    driver.copy(stage.pieces[turn % 2], block.address + offset + begin, size, queue.handle)
                    stage.marks[turn % 2] = Mark(queue, True)
                if turn:  # the piece before, while this one is on its way
                    before = begins[turn - 1]
                    wait_for([stage.marks[(turn - 1) % 2]])
                    ctypes.memmove(target + before, stage.pieces[(turn - 1) % 2], min(STAGE, nbytes - before))


def copy(target: Block, target_offset: int, source: Block, source_offset: int, nbytes: int) -> None:
    """Copy bytes that do not overlap from GPU to GPU, or within one, in the current queue of the target."""
    queue = current_queue(target.index)
    with Work(queue, reads=[source], writes=[target]):
        driver.copy(target.address + target_offset, source.address + source_offset, nbytes, queue.handle)


def fill(block: Block, offset: int, byte: int, nbytes: int) -> None:
    """Set bytes."""
    queue = current_queue(block.index)
    with Work(queue, writes=[block]):
        driver.fill(block.address + offset, byte, nbytes, queue.handle)
