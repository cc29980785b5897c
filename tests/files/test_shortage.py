"""What is no fault of the file that was read."""

import errno
import resource

import pytest

from quantkit.errors import FormatError, MachineError, OutOfMemory, OutputError
from quantkit.files.shortage import raise_shortage
from quantkit.files.urls import reading, writing


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (OSError(errno.EMFILE, "x"), MachineError, "too many open files: this process may have {limit} "),
        (OSError(errno.ENFILE, "x"), MachineError, "too many open files on this machine"),
        (OSError(errno.EIO, "x"), MachineError, "Input/output error"),
        (OSError(errno.ESTALE, "x"), MachineError, "[Ss]tale"),
        (OSError(errno.ENOMEM, "x"), OutOfMemory, "out of memory"),
        (MemoryError(), OutOfMemory, "out of memory"),
    ],
)
def test_a_shortage_is_named_with_the_file(error, kind, message):
    message = message.replace("{limit}", str(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    with pytest.raises(kind, match=f"^a.png: cannot be read: {message}"):
        raise_shortage("a.png", error)
    wrapped = SyntaxError("broken")
    wrapped.__cause__ = error
    with pytest.raises(kind):
        raise_shortage("a.png", wrapped)


@pytest.mark.parametrize("error", [OSError(errno.ENOENT, "x"), OSError("truncated"), FormatError("x"), ValueError("x")])
def test_what_the_file_is_to_blame_for_is_left_alone(error):
    raise_shortage("a.png", error)


def test_behind_a_url_what_is_read_and_what_is_written_are_told_apart():
    with pytest.raises(MachineError, match=r"^s3://a/b: cannot be read: too many open files"), reading("s3://a/b"):
        raise OSError(errno.EMFILE, "x")
    with pytest.raises(OutputError, match=r"^cannot write s3://a/b: x$"), writing("s3://a/b"):
        raise OSError(errno.EMFILE, "x")
