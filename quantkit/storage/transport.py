"""How shared bytes get from one process to another: a handle in the message, the descriptor through a socket.

A process that sends shared bytes runs one small thread that hands out descriptors to other processes of the same
user. A `Handle` says whom to ask for what. A message that is on its way holds its bytes here until they are fetched,
or until every process that could fetch them has ended; a handle made by `ByteStorage.handle` holds nothing. Bytes
that a process knows already are never mapped twice: they are recognized by the identity of their file.

On Linux the socket has an abstract name, which vanishes with the process. Elsewhere it is a file in the private
temporary folder of multiprocessing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import struct
import sys
import threading
import time
import weakref
from multiprocessing import parent_process, process, util
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from quantkit._kernels._core import Memory
from quantkit.errors import StorageError
from quantkit.storage.array import Array
from quantkit.storage.bytestorage import ByteStorage
from quantkit.storage.dtypes import as_shape, element_type
from quantkit.storage.limits import explain
from quantkit.storage.quint8 import QUInt8Storage
from quantkit.storage.shared import is_sealed

PATIENCE = 10.0  # seconds that a peer may take to answer
LINGER = 5.0  # seconds that a child process waits at its end for its last messages to be fetched
GRACE = 1.0  # seconds without any receiver alive after which a message counts as lost; a restarted worker is in time
PULSE = 0.25  # seconds between two looks for lost messages
FETCH, TAKE, DROP = range(3)  # the descriptor; the descriptor of a message; no descriptor: known already
_REQUEST = struct.Struct("=BQQQQ?")


class Handle(NamedTuple):
    """Where to ask for shared bytes, and which."""

    address: str
    device: int
    inode: int
    offset: int
    nbytes: int
    writable: bool


def _key(memory: Memory) -> tuple[Any, ...]:
    status = os.fstat(memory.fd)
    return status.st_dev, status.st_ino, memory.offset, memory.nbytes, memory.writable


class ArrayHandle(NamedTuple):
    """A `Handle`, and the array that lies on its bytes."""

    storage: Handle
    dtype: str
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]


class _Offer:
    """Bytes that others may ask for. Held alive while messages are on their way, and only then."""

    def __init__(self, memory: Memory) -> None:
        self.memory = weakref.ref(memory)
        self.waiting = 0
        self.held: Memory | None = None
        self.had_receivers = False
        self.lonely_since: float | None = None

    def hold(self, memory: Memory) -> None:
        self.waiting += 1
        self.held = memory

    def fetched(self) -> None:
        self.waiting = max(self.waiting - 1, 0)
        if not self.waiting:
            self.held = None

    def check_receivers(self, alive: bool) -> None:
        """Let go of bytes whose receivers have all ended, most likely killed with the message unread."""
        now = time.monotonic()
        if alive or not self.had_receivers:
            self.had_receivers, self.lonely_since = self.had_receivers or alive, None
        elif self.lonely_since is None:
            self.lonely_since = now
        elif now - self.lonely_since > GRACE:
            self.waiting, self.held = 0, None


def _receivers_alive() -> bool:
    """Whether a child or the parent of this process, made by multiprocessing, still runs. Reaps nobody."""
    parent = parent_process()
    if parent is not None and parent.is_alive():
        return True
    sentinels = [child.sentinel for child in list(getattr(process, "_children", ()))]
    return len(wait(sentinels, 0)) < len(sentinels)


class _Server:
    """The thread that hands out descriptors, one a process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.offers: dict[tuple[Any, ...], _Offer] = {}
        self.socket: socket.socket | None = None
        self.address = ""
        self.armed = False

    def arm(self) -> None:
        """Linger at the end of this process. Set up early: messages may still be pickled while it ends."""
        if not self.armed:
            self.armed = True
            util.Finalize(None, self.linger, exitpriority=-100)

    def offer(self, memory: Memory, *, hold: bool) -> Handle:
        key = _key(memory)
        with self.lock:
            if self.socket is None:
                self._start()
            for gone in [k for k, o in self.offers.items() if o.memory() is None]:
                del self.offers[gone]
            offer = self.offers.get(key)
            if offer is None:
                offer = self.offers[key] = _Offer(memory)
            if hold:
                offer.hold(memory)
                offer.check_receivers(_receivers_alive())
        return Handle(self.address, *key)

    def _start(self) -> None:
        try:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            name = f"quantkit-{os.getpid()}-{secrets.token_hex(8)}"
            self.address = f"\0{name}" if sys.platform == "linux" else os.path.join(util.get_temp_dir(), name)
            made.bind(self.address)
            made.listen(128)
        except OSError as error:
            raise explain(error, "cannot open a socket to hand out shared memory") from error
        self.socket = made
        threading.Thread(target=self._serve, args=(made,), name="quantkit-handles", daemon=True).start()
        self.arm()

    def _serve(self, listener: socket.socket) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        listener.settimeout(PULSE)
        while True:
            self._look_for_lost_messages()
            try:
                peer, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                time.sleep(PULSE)  # out of descriptors: others will give some back
                continue
            with peer, contextlib.suppress(OSError, struct.error):
                peer.settimeout(PATIENCE)
                if _same_user(peer):
                    verb, *key = _REQUEST.unpack(peer.recv(_REQUEST.size, socket.MSG_WAITALL))
                    self._answer(peer, verb, tuple(key))

    def _answer(self, peer: socket.socket, verb: int, key: tuple[Any, ...]) -> None:
        memory = self.look_up(key)
        if memory is None:
            peer.sendall(b"-")
            return
        if verb == DROP:
            peer.sendall(b"+")
        else:
            socket.send_fds(peer, [b"+"], [memory.fd])
        if verb != FETCH:
            self.fetched(key)

    def _look_for_lost_messages(self) -> None:
        with self.lock:
            # Bytes that the user still holds cost nothing to hold here as well.
            held = [offer for key, offer in self.offers.items() if offer.held is not None and key not in _known]
            if held:
                alive = _receivers_alive()
                for offer in held:
                    offer.check_receivers(alive)

    def look_up(self, key: tuple[Any, ...]) -> Memory | None:
        with self.lock:
            offer = self.offers.get(key)
            return None if offer is None else offer.memory()

    def fetched(self, key: tuple[Any, ...]) -> None:
        with self.lock:
            if (offer := self.offers.get(key)) is not None:
                offer.fetched()

    def linger(self) -> None:
        """Give messages of a process that ends a last chance to be fetched; the main process ends at once."""
        end = time.monotonic() + LINGER
        while parent_process() is not None and time.monotonic() < end:
            with self.lock:
                if not any(o.waiting for o in self.offers.values()):
                    return
            time.sleep(0.005)


def _same_user(peer: socket.socket) -> bool:
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the socket is a file in a folder of this user
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(uid == os.getuid())


_server = _Server()
_known: weakref.WeakValueDictionary[tuple[Any, ...], ByteStorage] = weakref.WeakValueDictionary()


def _after_fork() -> None:
    # The thread did not come along, and the address is the parent's: dead when the parent is.
    global _server  # noqa: PLW0603
    if _server.socket is not None:
        _server.socket.close()
    _server = _Server()


os.register_at_fork(after_in_child=_after_fork)


def register(storage: ByteStorage) -> None:
    """Remember shared bytes, so that they are recognized when they come back."""
    _known.setdefault(_key(storage._memory), storage)
    _server.arm()


def handle_of(storage: ByteStorage) -> Handle:
    """Return a handle that holds nothing (`ByteStorage.handle`)."""
    if not storage.is_shared():
        raise StorageError("handle: these bytes are not shared; call share_memory_() first")
    register(storage)
    return _server.offer(storage._memory, hold=False)


def attach(handle: Any, verb: int = FETCH) -> ByteStorage:
    """Return the storage behind a handle (`ByteStorage.from_handle`)."""
    if isinstance(handle, tuple) and len(handle) == 4:  # of a GPU
        from quantkit.storage.cuda_sharing import attach as attach_on_gpu

        return attach_on_gpu(handle)
    try:
        handle = Handle(*handle)
        key = tuple(handle)[1:]
        _REQUEST.pack(verb, *key)
    except (TypeError, struct.error):
        raise StorageError(f"wanted a handle of shared bytes, got {handle!r}") from None
    storage = _known.get(key)
    if storage is None:
        storage = ByteStorage._of(_fetch(handle, key, verb))
        _server.arm()
        return _known.setdefault(key, storage)
    if verb == TAKE:
        with contextlib.suppress(StorageError):  # a sender that has ended holds nothing for us any more
            _fetch(handle, key, DROP)
    return storage


def array_handle_of(array: Array) -> ArrayHandle:
    """Return a handle that holds nothing (`Array.handle`)."""
    dtype = "quint8" if isinstance(array, QUInt8Storage) else array._type.name
    return ArrayHandle(handle_of(array.storage()), dtype, array.shape, array._offset, array.strides)


def attach_array(handle: ArrayHandle) -> Array:
    """Return the array behind a handle (`Array.from_handle`)."""
    try:
        storage, dtype, shape, offset, strides = handle
    except (TypeError, ValueError):
        raise StorageError(f"wanted a handle of a shared Array, got {handle!r}") from None
    cls, dtype = (QUInt8Storage, "uint8") if dtype == "quint8" else (Array, dtype)
    return cls._make(attach(storage), element_type(dtype), as_shape(shape), offset, tuple(strides))


def _fetch(handle: Handle, key: tuple[Any, ...], verb: int) -> Any:
    """Ask for the bytes of a handle; return their Memory, or None for `DROP`."""
    if handle.address == _server.address:
        memory = _server.look_up(key)
        if memory is None:
            raise StorageError("this process has let go of the shared bytes of this handle")
        if verb != FETCH:
            _server.fetched(key)
        return memory
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(PATIENCE)
            peer.connect(handle.address)
            peer.sendall(_REQUEST.pack(verb, *key))
            answer, fds, _, _ = socket.recv_fds(peer, 1, 1)
    except TimeoutError:
        raise StorageError(f"the process that sent shared bytes did not answer for {PATIENCE:.0f} s") from None
    except (ConnectionError, FileNotFoundError):
        answer, fds = b"", []
    except OSError as error:
        raise explain(error, "cannot fetch shared bytes from another process") from error
    if answer == b"+" and verb == DROP:
        return None
    if answer == b"-":
        raise StorageError("the process that sent a handle has let go of its shared bytes; keep them until it is used")
    if answer == b"+" and not fds:
        raise explain(OSError(24, "Too many open files"), "cannot take shared bytes from another process")
    if answer != b"+":
        raise StorageError("the process that sent shared bytes has ended before they were fetched")
    return _map(fds[0], handle)


def _map(fd: int, handle: Handle) -> Memory:
    status = os.fstat(fd)
    if (status.st_dev, status.st_ino) != (handle.device, handle.inode):
        os.close(fd)
        raise StorageError("another process answered with other bytes than the handle names")
    sealed = is_sealed(fd)
    origin = "shared memory" if sealed else f"the file of inode {handle.inode}"
    try:
        return Memory.map(fd, handle.offset, handle.nbytes, True, handle.writable, origin, not sealed)
    except OSError as error:
        raise explain(error, f"cannot map {handle.nbytes} bytes of {origin}") from error


def _receive(*handle: Any) -> ByteStorage:
    return attach(Handle(*handle), TAKE)


def _receive_array(cls: Any, dtype: str, storage: ByteStorage, *layout: Any) -> Array:
    return cls._make(storage, element_type(dtype), *layout)  # type: ignore[no-any-return]


def _reduce(storage: ByteStorage) -> tuple[Any, ...]:
    if not storage.is_shared():
        return storage.__reduce_ex__(4)
    register(storage)
    return _receive, tuple(_server.offer(storage._memory, hold=True))


def _reduce_array(array: Array) -> tuple[Any, ...]:
    if not array.is_shared():
        return array.__reduce_ex__(4)
    layout = (array.storage(), array.shape, array._offset, array.strides)
    return _receive_array, (type(array), array._type.name, *layout)


ForkingPickler.register(ByteStorage, _reduce)
ForkingPickler.register(Array, _reduce_array)
ForkingPickler.register(QUInt8Storage, _reduce_array)
