"""Which stream is the current one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quantkit._kernels import _core
from quantkit.errors import InvalidDType
from quantkit.storage.dtypes import device_index
from quantkit.streams.stream import Stream, default_stream

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class StreamContext:
    """Make a stream the current one for a while: ``with StreamContext(s):``.

    It holds for this thread, or this asyncio task, alone. Contexts nest. Leaving one waits for nothing.

    Parameters
    ----------
    stream : Stream, optional
        A new one is made where none is given. The default stream is as no stream at all. Streams of torch and CuPy
        are taken as they are.

    Attributes
    ----------
    stream : Stream

    Examples
    --------
    >>> import numpy as np
    >>> import quantkit as qk
    >>> with qk.StreamContext() as c:
    ...     y = qk.ops.copy(np.arange(3))
    >>> c.synchronize()
    >>> np.asarray(y).tolist()
    [0, 1, 2]
    """

    def __init__(self, stream: Any = None) -> None:
        if stream is not None and not isinstance(stream, Stream):
            if not any(hasattr(stream, name) for name in ("cuda_stream", "__cuda_stream__")):
                raise InvalidDType(f"StreamContext: wanted a Stream, got {type(stream).__name__}")
            from quantkit.streams.cuda import external

            stream = external(stream)
        self.stream: Stream = Stream() if stream is None else stream
        self._tokens: list[Any] = []

    def __enter__(self) -> Self:
        self._tokens.append(self.stream._enter())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stream._leave(self._tokens.pop())

    def synchronize(self) -> None:
        """Wait for the stream: `Stream.synchronize`."""
        self.stream.synchronize()

    def wait_completion(self, timeout: float | None = None) -> bool:
        """Wait for the stream, at most `timeout` seconds: `Stream.wait_completion`."""
        return self.stream.wait_completion(timeout)


stream = StreamContext


def current_stream(device: Any = "cpu") -> Stream:
    """Return the stream that verbs on a device are queued on here; its default stream outside of all contexts."""
    if (index := device_index(device)) is not None:
        from quantkit.streams.cuda import current

        return current(index)
    found: Stream | None = _core.current()
    return default_stream() if found is None else found
