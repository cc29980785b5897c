"""Streams: ordered queues of work that run side by side, each on a C thread of its own.

docs/streams.md shows how they are used, and states the rules.
"""

from quantkit.streams.context import StreamContext, current_stream, stream
from quantkit.streams.event import Event
from quantkit.streams.pool import StreamPool
from quantkit.streams.stream import Stream, StreamFuture, default_stream
from quantkit.streams.trace import profile

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "StreamFuture",
    "StreamPool",
    "current_stream",
    "default_stream",
    "profile",
    "stream",
]
