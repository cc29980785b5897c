"""What other processes do in the tests of CUDA IPC."""

import os
import signal

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


def from_handle(handle):
    return qk.Array.from_handle(handle).tolist()


def make():
    """Share bytes that nobody here holds on to."""
    return qk.full((3,), 5, dtype=np.int32, device="cuda:0").share_memory_()
