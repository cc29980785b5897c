"""What other processes do in the tests of CUDA IPC."""

import os
import signal
import time

import numpy as np

import quantkit as qk


def prepare(real, folder):
    """Begin a process: where the parent has a stand-in for the driver, so has this one, with the same folder."""
    if not real:
        os.environ["QUANTKIT_TEST_IPC"] = folder
        import fake_cuda

        fake_cuda.in_this_process()


def write(array, key, value):
    """Set elements, and return what they all are then."""
    array[key] = value
    return array.device, array.tolist()


def die_holding(connection):
    """Receive bytes, say so, and be killed."""
    prepare(*connection.recv())
    array = connection.recv()
    connection.send(array.tolist())
    os.kill(os.getpid(), signal.SIGKILL)


def send_on(connection, onward):
    """Receive bytes, send them to another process, and keep them until the end."""
    prepare(*connection.recv())
    array = connection.recv()
    onward.send(array)
    connection.recv()
    from quantkit.storage import transport

    deadline = time.monotonic() + 60
    while any(offer.held is not None for offer in transport._server.offers.values()):
        assert time.monotonic() < deadline, "the message is still on its way"
        time.sleep(0.01)
    connection.send("sent")
    connection.recv()
    connection.send(array.tolist())


def receive(connection, source):
    """Receive bytes from another process, write them, and let go."""
    prepare(*connection.recv())
    array = source.recv()
    array[0] = 7
    connection.send(array.tolist())
    connection.recv()


def from_handle(handle):
    return qk.Array.from_handle(handle).tolist()


def make():
    """Share bytes that nobody here holds on to."""
    return qk.full((3,), 5, dtype=np.int32, device="cuda:0").share_memory_()
