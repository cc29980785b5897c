"""Random work over eight streams, beside the same work done at once: equal results and errors, no hang, no leak.

    python tests/streams/stress.py [operations] [seed]

Verbs that read and write shared cells, whole or in part, callables, events, errors, cancelled work and forks. What a
cell must hold is known at every moment, because the order of the calls alone determines it.
"""

import contextlib
import faulthandler
import gc
import os
import random
import signal
import sys
import threading
import weakref

import numpy as np

import quantkit as qk
from quantkit import ops
from quantkit.errors import InvalidArgument, StreamCancelled, StreamForked

STREAMS, CELLS, SIZE = 8, 16, 256
NAN = np.full(SIZE, np.nan, np.float32)


class Work:
    """The streams, the cells, and what each must hold: values, or the class of the error that reading it raises."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        values = np.random.default_rng(seed)
        self.tables = [values.permutation(256).astype(np.uint8) for _ in range(8)]
        self.streams = [qk.Stream() for _ in range(STREAMS)]
        self.cells = [qk.full((SIZE,), 0, dtype=np.uint8) for _ in range(CELLS)]
        self.expected = [np.zeros(SIZE, np.uint8) for _ in range(CELLS)]
        for cell, expected in zip(self.cells, self.expected, strict=True):
            expected[:] = values.integers(0, 256, SIZE)
            cell[:] = expected
        ends = [sorted(self.random.sample(range(SIZE + 1), 2)) for _ in range(12)]
        self.parts = [slice(*pair) for pair in ends]
        self.views = [[cell[part] for part in self.parts] for cell in self.cells]  # indexing later would wait
        self.futures, self.events, self.watched = [], [], []

    def any_cell(self):
        return self.random.randrange(CELLS)

    def write(self, value, to, part=None):
        """`value` was copied to a cell, or to a part of it."""
        before = self.expected[to]
        if part is None:
            self.expected[to] = value if isinstance(value, type) else value.copy()
        elif isinstance(value, type):
            self.expected[to] = value
        elif not isinstance(before, type):  # a part does not mend the rest
            self.expected[to] = before.copy()
            self.expected[to][part] = value[part]

    def look_up(self, value, table):
        return value if isinstance(value, type) else self.tables[table][value]

    # ------------------------------------------------------------------------------------------------ verbs

    def verb(self, s):
        source, to, table = self.any_cell(), self.any_cell(), self.random.randrange(8)
        with qk.stream(s):
            ops.lookup(self.cells[source], self.tables[table], out=self.cells[to])
        self.write(self.look_up(self.expected[source], table), to)

    def part(self, s):
        source, to = self.any_cell(), self.any_cell()
        k = self.random.randrange(len(self.parts))
        with qk.stream(s):
            ops.copy(self.views[source][k], out=self.views[to][k])
        self.write(self.expected[source], to, self.parts[k])

    def chain(self, s):
        source, to, table = self.any_cell(), self.any_cell(), self.random.randrange(8)
        other = self.random.choice(self.streams)
        with qk.stream(s):
            pending = ops.lookup(self.cells[source], self.tables[table])
        with qk.stream(other):
            ops.copy(pending, out=self.cells[to])
        self.watched.append(weakref.ref(pending))
        self.write(self.look_up(self.expected[source], table), to)

    def fault(self, s):
        to = self.any_cell()
        with qk.stream(s):
            codes, _, _ = ops.dynamic_quantize_linear(NAN)
            ops.copy(codes, out=self.cells[to])
        self.write(InvalidArgument, to)

    # ------------------------------------------------------------------------------------------------ the rest

    def callable(self, s):
        source = self.any_cell()
        with qk.stream(self.random.choice(self.streams)):
            copied = ops.copy(self.cells[source])
        self.futures.append((s.submit(lambda: bytes(np.asarray(copied))), self.expected[source]))

    def event(self, s):
        if self.events and self.random.random() < 0.6:
            s.wait_event(self.random.choice(self.events))
        else:
            self.events = [*self.events[-7:], s.record_event()]

    def follow(self, s):
        s.wait_stream(self.random.choice(self.streams))

    def read(self, s):
        del s
        self.check(self.any_cell())

    def synchronize(self, s):
        if self.random.random() < 0.9:
            s.query()
            return
        with contextlib.suppress(InvalidArgument, StreamCancelled):
            s.synchronize()

    def cancel(self, s):
        if self.random.random() < 0.9:
            return
        begun, gate = threading.Event(), threading.Event()
        s.submit(lambda: (begun.set(), gate.wait()))
        assert begun.wait(60)
        count = self.random.randrange(6)
        for _ in range(count):
            to = self.any_cell()
            with qk.stream(s):
                ops.copy(self.tables[0], out=self.cells[to])
            self.write(StreamCancelled, to)
        future = s.submit(int)
        assert s.cancel() == count + 1
        gate.set()
        assert future.cancelled()

    def fork(self, s):
        if self.random.random() < 0.98:
            return
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(60)
                for i in range(CELLS):
                    with contextlib.suppress(StreamForked):
                        self.check(i)
                with qk.stream(s):
                    again = ops.lookup(self.tables[0], self.tables[1])
                assert np.array_equal(again, self.tables[1][self.tables[0]])
                os._exit(0)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0

    def check(self, i):
        expected = self.expected[i]
        try:
            found = np.asarray(self.cells[i])
        except (InvalidArgument, StreamCancelled) as error:
            found = type(error)
        if isinstance(found, type) or isinstance(expected, type):
            assert found is expected, (i, found, expected)
        else:
            assert np.array_equal(found, expected), (i, found, expected)

    def finish(self):
        """Compare everything."""
        for future, expected in self.futures:
            error = future.exception(60)
            if isinstance(expected, type):
                assert type(error) is expected
            else:
                assert error is None
                assert future.result() == expected.tobytes()
        self.futures.clear()
        for i in range(CELLS):
            self.check(i)


def resident():
    """Bytes of memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def main(operations, seed):
    """Run, and print what there was to see."""
    sys.unraisablehook = lambda _: None  # of the errors, most reach nobody
    work = Work(seed)
    kinds = [work.verb] * 8 + [work.part] * 4 + [work.chain] * 4 + [work.callable] * 2 + [work.event] * 2
    kinds += [work.fault, work.follow, work.read, work.synchronize, work.cancel, work.fork]
    memory = 0
    for n in range(operations):
        work.random.choice(kinds)(work.random.choice(work.streams))
        if n % 500 == 499:
            faulthandler.dump_traceback_later(120, exit=True)  # where it hangs, it says so
            work.finish()
            for cell in range(CELLS):  # most would have failed by and by
                if isinstance(work.expected[cell], type) and cell % 2:
                    with qk.stream(work.streams[0]):
                        ops.copy(work.tables[2], out=work.cells[cell])
                    work.expected[cell] = work.tables[2].copy()
        if n == operations // 3:
            memory = resident()
    work.finish()
    grown = resident() - memory
    for s in work.streams:
        with contextlib.suppress(InvalidArgument, StreamCancelled):
            s.close()
    work.cells.clear()
    work.views.clear()
    gc.collect()
    alive = sum(ref() is not None for ref in work.watched)
    faulthandler.cancel_dump_traceback_later()
    print(f"{operations} operations equal to the serial result, {alive} arrays left, grown by {grown >> 20} MiB")
    return 0 if alive == 0 and grown < 32 << 20 else 1


if __name__ == "__main__":
    numbers = [int(n) for n in sys.argv[1:]]
    sys.exit(main(*(numbers + [4000, 1][len(numbers) :])))
