"""What the other processes of the sharing tests run, and how the tests look at what processes hold."""

import gc
import os
import signal
import time

import numpy as np

import quantkit as qk

SLOT = (0, 0)


def numbers(t):
    return np.asarray(t.dequantize() if isinstance(t, qk.QTensor) else t)


def touch(t, value=5.0):
    """Read everything, write one element, and tell what was there."""
    seen = numbers(t).tolist()
    t[SLOT] = value
    return seen, t.is_shared(), os.getpid()


def read(t):
    return float(numbers(t)[SLOT])


def converse(t, pipe):
    """A process with `t` as argument: does what it is told through the pipe until told to stop."""
    while (command := pipe.recv()) is not None:
        pipe.send(touch(t) if command == "touch" else read(t))


def serve(inbox, outbox):
    """A process with two queues: touches what comes, and sends the same tensor back."""
    while (t := inbox.get()) is not None:
        outbox.put((touch(t), t))


def read_forever(inbox):
    while True:
        read(inbox.get())


def make(n):
    return qk.full((n, n), 3.0).share_memory_()


def identity(t):
    return t


def same_storage(tensors):
    return len({id(t.storage().storage()) for t in tensors}), len({t.data_ptr() for t in tensors})


def forward(n, inbox, outbox, pipe_end=None):
    """Make a child of its own that touches the tensor, then pass the tensor on."""
    import multiprocessing

    t = inbox.get()
    if n:
        context = multiprocessing.get_context("spawn")
        below, back = context.Queue(), context.Queue()
        child = context.Process(target=forward, args=(n - 1, below, back))
        child.start()
        below.put(t)
        returned = back.get()
        child.join()
        assert returned.storage().storage() is t.storage().storage()
    t[SLOT] = read(t) + 1
    outbox.put(t)


def attach(handle):
    t = qk.QTensor.from_handle(handle)
    t[os.getpid() % t.shape[0], 1] = 7.0
    return read(t)


def attach_when_told(handle, pipe):
    pipe.recv()
    try:
        pipe.send(read(qk.QTensor.from_handle(handle)))
    except Exception as error:
        pipe.send(error)


def send_and_die(queue, pipe):
    queue.put(make(4))
    time.sleep(0.3)  # the queue's thread has pickled it by then
    pipe.send("sent")
    os.kill(os.getpid(), signal.SIGKILL)


def send_and_end(queue):
    queue.put(make(4))


_kept = []


def keep(arena):
    _kept.append(arena)


def fill_slot(slot, value):
    array = _kept[0].array(slot, (10,), "float32").fill_(value)
    return _kept[0].message(slot, array)


def sleep_forever():
    time.sleep(1000)


def descriptors():
    """Descriptors of this process that are shared memory of quantkit, and how many there are in all."""
    gc.collect()  # what other tests left in cycles is no part of the answer
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:  # the one of listdir itself
            continue
    return sum("memfd:quantkit" in link for link in links), len(links)


def maps():
    """Maps of shared memory of quantkit in this process."""
    with open("/proc/self/maps") as lines:
        return sum("memfd:quantkit" in line for line in lines)


def segments():
    return sorted(n for n in os.listdir("/dev/shm") if not n.startswith("sem."))


def lose_messages(method):
    """Send ten tensors to a process that never reads them, kill it, and report what is held before and after."""
    import multiprocessing

    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=sleep_forever)
    process.start()
    for _ in range(10):
        queue.put(make(3))
    end = time.monotonic() + 20
    while descriptors()[0] < 10 and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(1.8)  # far beyond the time after which lost messages are let go
    print(descriptors()[0])
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    while descriptors()[0] and time.monotonic() < end:
        time.sleep(0.01)
    print(descriptors()[0])
    try:
        queue.get()
    except qk.errors.StorageError as error:
        print(type(error).__name__, "let go" if "let go" in str(error) else error)
