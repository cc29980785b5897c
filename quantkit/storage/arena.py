"""One piece of shared memory for a whole batch job: slots, and messages of three integers."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from quantkit.errors import InvalidArgument, StorageError
from quantkit.storage.array import Array
from quantkit.storage.bytestorage import ByteStorage
from quantkit.storage.dtypes import as_shape, element_type
from quantkit.storage.quint8 import QUInt8Storage
from quantkit.storage.shared import allocate

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

ALIGNMENT = 64


class Message(NamedTuple):
    """A place in an arena: plain integers, cheap to send in any way."""

    slot: int
    offset: int
    nbytes: int


class Arena:
    """Slots of equal size in one shared storage, handed to workers once and used for every item.

    Sending a tensor on its own costs a descriptor and a map on both sides. An arena costs them once: it travels as a
    `Process` argument or in ``initargs``, and after that messages are `Message` tuples. The process that made it hands
    out the slots, and takes back those of workers that died.

    Parameters
    ----------
    slots : int
        Number of slots, >= 1.
    nbytes : int
        Bytes of a slot; rounded up to a multiple of 64.

    Raises
    ------
    InvalidArgument, OutOfMemory
        For sizes that make no arena; when the memory cannot be had.

    Examples
    --------
    >>> arena = Arena(slots=2, nbytes=100)
    >>> slot = arena.acquire()
    >>> a = arena.array(slot, (3,), "float32").fill_(1.5)
    >>> arena.message(slot, a)
    Message(slot=0, offset=0, nbytes=12)
    >>> arena.release(slot)
    """

    def __init__(self, slots: int, nbytes: int) -> None:
        self.slots, size = as_shape((slots, nbytes))
        if not self.slots or not size:
            raise InvalidArgument(f"an arena wants at least one slot of one byte, got {slots} of {nbytes}")
        self.slot_nbytes = -(-size // ALIGNMENT) * ALIGNMENT
        (total,) = as_shape((self.slots * self.slot_nbytes,))
        self.storage = ByteStorage._of(allocate(total)).share_memory_()
        self._free: list[int] | None = list(range(self.slots - 1, -1, -1))
        self._owners: dict[int, BaseProcess | None] = {}
        self._change = threading.Condition()

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (self.slots, self.slot_nbytes, self.storage)

    def array(self, slot: int, shape: Any, dtype: Any, offset: int = 0) -> Array:
        """Return an Array of `shape` and `dtype` on a slot, `offset` bytes into it.

        Raises
        ------
        StorageError
            When it would reach outside the slot.
        """
        etype, sizes, name = element_type(dtype), as_shape(shape), str(dtype)
        cls = QUInt8Storage if name in {"quint8", "quantkit.quint8"} else Array
        start = self._start(slot) + offset
        made = cls._make(self.storage, etype, sizes, start)
        if offset < 0 or offset + made.nbytes > self.slot_nbytes:
            raise StorageError(f"{made.nbytes} bytes at offset {offset} reach outside a slot of {self.slot_nbytes}")
        return made

    def message(self, slot: int, array: Array) -> Message:
        """Return the message that says where `array` lies in a slot."""
        offset = array._offset - self._start(slot)
        if array.storage() is not self.storage or offset < 0 or offset + array.nbytes > self.slot_nbytes:
            raise StorageError(f"the array does not lie in slot {slot} of this arena")
        return Message(slot, offset, array.nbytes)

    def view(self, message: tuple[int, int, int]) -> Array:
        """Return the bytes that a message speaks of, as an Array of uint8."""
        slot, offset, nbytes = message
        return self.array(slot, (nbytes,), "uint8", offset)

    def _start(self, slot: int) -> int:
        if not 0 <= slot < self.slots:
            raise StorageError(f"an arena of {self.slots} slots has no slot {slot}")
        return slot * self.slot_nbytes

    def acquire(self, worker: BaseProcess | None = None, timeout: float | None = None) -> int:
        """Return a free slot, waiting for one.

        Parameters
        ----------
        worker : Process, optional
            Who will use it; when that process dies, the slot is free again.
        timeout : float, optional
            Seconds to wait.

        Raises
        ------
        StorageError
            When no slot became free in time; in a process that did not make the arena.
        """
        end = None if timeout is None else time.monotonic() + timeout
        with self._change:
            free = self._own()
            while not free and not self._reclaim():
                left = 0.05 if end is None else min(0.05, end - time.monotonic())
                if left <= 0:
                    raise StorageError(f"no slot of {self.slots} became free in {timeout} s")
                self._change.wait(left)
            slot = free.pop()
            self._owners[slot] = worker
            return slot

    def release(self, slot: int) -> None:
        """Give a slot back."""
        with self._change:
            if slot not in self._owners:
                raise StorageError(f"slot {slot} is not in use")
            del self._owners[slot]
            self._own().append(slot)
            self._change.notify()

    def _own(self) -> list[int]:
        if self._free is None:
            raise StorageError("slots are handed out by the process that made the arena")
        return self._free

    def _reclaim(self) -> bool:
        """Take back the slots of workers that died; return whether there were any."""
        from multiprocessing.connection import wait

        sentinels = {worker.sentinel: worker for worker in self._owners.values() if worker is not None}
        dead = {sentinels[s] for s in wait(list(sentinels), 0) if isinstance(s, int)}
        lost = [slot for slot, worker in self._owners.items() if worker in dead]
        for slot in lost:
            del self._owners[slot]
            self._own().append(slot)
        return bool(lost)


def _receive(slots: int, slot_nbytes: int, storage: ByteStorage) -> Arena:
    made = Arena.__new__(Arena)
    made.slots, made.slot_nbytes, made.storage = slots, slot_nbytes, storage
    made._free, made._owners, made._change = None, {}, threading.Condition()
    return made
