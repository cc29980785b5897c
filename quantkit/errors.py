"""Every error that quantkit raises on purpose.

One tree under `QuantkitError`, so that ``except QuantkitError`` catches all of it; each class also derives from the
builtin that NumPy users would expect. The message says what was wanted and what came. All survive pickling, because
they carry nothing but their message.
"""


class QuantkitError(Exception):
    """Base of all errors that quantkit raises on purpose."""


class InvalidArgument(QuantkitError, ValueError):
    """An argument has a value that the call cannot take."""


class InvalidDType(QuantkitError, TypeError):
    """An array or argument has a type or dtype that the call cannot take."""


class ShapeMismatch(QuantkitError, ValueError):
    """Shapes, axes or layouts do not fit each other."""


class InvalidQParams(QuantkitError, ValueError):
    """A scale or zero point that cannot describe a quantized tensor; names the channel."""


class UnsupportedISA(QuantkitError, RuntimeError):
    """An instruction set was asked for that this build or this CPU does not have."""


class StorageError(QuantkitError, ValueError):
    """Bytes that cannot be read, written, resized or moved as asked."""


class StorageBusy(QuantkitError, BufferError):
    """Bytes that cannot move now, because a memoryview, ndarray or DLPack export of them is alive."""


class OutOfMemory(QuantkitError, MemoryError):
    """Memory that could not be had; the message says how much was asked for."""


class MachineError(QuantkitError, OSError):
    """A limit or fault of the machine, such as too many open files, met while a file was read; names both."""


class StreamError(QuantkitError, RuntimeError):
    """A stream that cannot do what it was asked: it is closed, or would wait for itself."""


class StreamCancelled(StreamError):
    """Work on a stream that was cancelled before it began; its results were never made."""


class StreamForked(StreamError):
    """Work that the parent process had queued on a stream and not done when it forked: it is not done in the child."""


class CudaUnavailable(QuantkitError, RuntimeError):
    """CUDA cannot be used here; says why, and what to install where that helps."""


class CudaError(QuantkitError, RuntimeError):
    """A call to the CUDA driver that failed; names the call and the driver's error."""


class FormatError(QuantkitError, ValueError):
    """A file that is not what its name or header claims; names the file and the place."""


class ModelError(FormatError):
    """An ONNX model that cannot be loaded, checked or run; names the file, node or tensor."""


class CalibrationError(QuantkitError, ValueError):
    """Calibration data that does not fit the model; names the input, what was wanted and what came."""


class OutputError(QuantkitError, OSError):
    """An output that cannot be written; names the path. Nothing half-written is left behind."""


class ClusterError(QuantkitError, RuntimeError):
    """A cluster that cannot be reached, or that lost every worker a task came to; names the scheduler."""


class MissingDependency(QuantkitError, ImportError):
    """A library that this job needs is not installed; says what to install."""
