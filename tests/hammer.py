"""Ways to mistreat storages, run by the tests in processes of their own.

Also worth a run under AddressSanitizer, with a build made by QUANTKIT_SANITIZE=1: docs/storage.md has the commands.
"""

import gc
import math
import multiprocessing
import os
import pickle
import queue
import random
import signal
import sys
import threading
import time

import numpy as np
import sharing

import quantkit as qk
from quantkit.errors import QuantkitError

THREADS = 8
WELCOME = (QuantkitError, IndexError, BufferError, ValueError, queue.Full)  # clear errors; anything else is a fault


def one_blow(rng, box, outbox):
    """Do one thing to the storage that all threads share; bytes are 0 or 7 at all times."""
    s = box[0]
    n = len(s)
    verb = rng.randrange(15)
    if verb == 0:
        s.resize_(rng.choice([0, 1, 63, 4096, 100_000]))
    elif verb == 1:
        s.share_memory_()
        if outbox is not None:
            outbox.put_nowait(s[: rng.randrange(n + 1)])
    elif verb == 2:
        box[0] = qk.ByteStorage.full(rng.choice([0, 100, 50_000]), 7)
    elif verb == 3:
        s.fill_(7)
    elif verb == 4:
        s[n // 2] = 7
    elif verb == 5:
        view = s[n // 4 : n // 2]
        time.sleep(0)
        assert not set(np.unique(view)) - {0, 7}
        view.fill_(7)
    elif verb == 6:
        array = np.asarray(s)
        time.sleep(0)
        assert not set(np.unique(array)) - {0, 7}
    elif verb == 7:
        t = qk.as_tensor(s).reshape(-1, 1)
        t[: n // 3] = 7.0
        assert not set(t[::2].T.clone().dequantize().ravel().tolist()) - {0.0, 7.0}
    elif verb == 8:
        assert not set(pickle.loads(pickle.dumps(s)).tolist()) - {0, 7}
    elif verb == 9:
        view = memoryview(s)
        time.sleep(0)
        view.release()
    elif verb == 10:
        s.copy_(s.clone())
    elif verb == 11:
        q = s.new_quint8_storage(n // 2)
        q[q == 0] = 7
        q.resize_(n)
    elif verb == 12:
        box[1].resize_(*[rng.randrange(20) for _ in range(rng.randrange(4))])
    elif verb == 13:
        q = box[1]
        array = np.asarray(q)
        time.sleep(0)
        assert memoryview(array).nbytes == array.size == math.prod(array.shape)
        assert len(q.strides) < 4
    elif verb == 14:
        box[1] = qk.QUInt8Storage(rng.randrange(20), rng.randrange(20))


def strike(seed, box, outbox, end, faults):
    rng = random.Random(seed)
    while time.monotonic() < end and not faults:
        try:
            one_blow(rng, box, outbox)
        except WELCOME:
            pass
        except BaseException as fault:  # reported by the process, which fails
            faults.append(repr(fault))


def hammer(seed, seconds, box, inbox=None, outbox=None):
    """Let eight threads loose on a storage, and another on what comes from the other process."""
    faults = []
    end = time.monotonic() + seconds

    def receive():
        while time.monotonic() < end:
            try:
                got = inbox.get(timeout=0.1)
                got.fill_(7)
                box[0] = got.storage()
            except (queue.Empty, *WELCOME):
                continue

    threads = [threading.Thread(target=strike, args=(seed * 100 + i, box, outbox, end, faults)) for i in range(THREADS)]
    if inbox is not None:
        threads.append(threading.Thread(target=receive))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(*faults, sep="\n", end="", file=sys.stderr)
    return not faults


def hammer_in_child(*arguments):
    os._exit(0 if hammer(*arguments) else 3)  # without waiting for messages that nobody reads any more


def main(seconds, method="spawn"):
    """Two processes of eight threads each, with storages going to and fro."""
    context = multiprocessing.get_context(method)
    there, back = context.Queue(100), context.Queue(100)
    box = [qk.ByteStorage.full(1000, 7).share_memory_(), qk.QUInt8Storage(3, 4)]
    other = context.Process(target=hammer_in_child, args=(1, seconds, box, there, back), daemon=True)
    other.start()
    assert hammer(2, seconds, box, back, there)
    for q in (there, back):
        q.cancel_join_thread()
    other.join(seconds + 60)
    assert other.exitcode == 0, other.exitcode
    print("survived")


# ------------------------------------------------------------------------------------------------ kill -9

SIZE = 1 << 20


def send(outbox, inbox):
    while True:
        outbox.put(qk.full((SIZE,), 3.0).share_memory_())
        kept = qk.full((16, 16), 1.0).share_memory_()
        outbox.put(kept.T)
        try:
            inbox.get(timeout=0.01)
        except queue.Empty:
            continue


def receive(inbox, outbox):
    kept = []
    while True:
        t = inbox.get()
        t[0] = 2.0
        kept = [*kept[-3:], t]
        outbox.put(t)


def lead(there, back):
    """The first process of a group of three, so that one signal ends them all."""
    os.setsid()
    context = multiprocessing.get_context("fork")
    context.Process(target=receive, args=(there, back)).start()
    context.Process(target=receive, args=(there, back)).start()
    send(there, back)


def survive(rounds, seed):
    """Kill sender, receiver or whole groups at random moments, and print what is left of them."""
    rng = random.Random(seed)
    context = multiprocessing.get_context("fork")
    mine = qk.full((SIZE,), 1.0).share_memory_()
    mine.handle()  # opens the socket, which stays
    before = (sharing.descriptors(), sharing.maps(), sharing.segments())
    memory = shared_memory_of_the_machine()
    for i in range(rounds):
        there, back = context.Queue(10), context.Queue()
        if i % 3 == 0:
            group = context.Process(target=lead, args=(there, back))
            group.start()
            time.sleep(0.05 + rng.random() / 20)
            os.killpg(group.pid, signal.SIGKILL)
            processes = [group]
        else:
            processes = [
                context.Process(target=send, args=(there, back)),
                context.Process(target=receive, args=(there, back)),
            ]
            for process in processes:
                process.start()
            there.put(mine)  # this process sends as well
            there.put(qk.full((SIZE,), 2.0).share_memory_())
            time.sleep(rng.random() / 20)
            os.kill(processes[i % 3 - 1].pid, signal.SIGKILL)
            time.sleep(rng.random() / 50)
            for process in processes:
                process.kill()
        for process in processes:
            process.join()
            process.close()
        for q in (there, back):
            q.cancel_join_thread()
            q.close()
        del there, back, q
    end = time.monotonic() + 30
    while (now := (sharing.descriptors(), sharing.maps(), sharing.segments())) != before and time.monotonic() < end:
        gc.collect()
        time.sleep(0.05)
    print("descriptors and maps:", now == before, before, now)
    print("memory:", shared_memory_of_the_machine() - memory < 64 * SIZE)
    assert mine.storage()[SIZE - 1] == 1


def shared_memory_of_the_machine():
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Shmem:"))
