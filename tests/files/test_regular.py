"""What a path is, before it is read."""

import os
import socket

import pytest

from quantkit.files import file_problem


def test_a_regular_file(tmp_path):
    (tmp_path / "a").write_text("")
    (tmp_path / "link").symlink_to("a")
    assert file_problem(tmp_path / "a") is None
    assert file_problem(tmp_path / "link") is None


def test_what_is_none(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    assert file_problem("nowhere") == "cannot be read: No such file or directory"
    assert file_problem(tmp_path) == "is not a regular file, it is a folder"
    assert file_problem("pipe") == "is not a regular file, it is a pipe"
    assert file_problem("socket") == "is not a regular file, it is a socket"
    assert file_problem(os.devnull) == "is not a regular file, it is a device"
    assert file_problem("loop") == "cannot be read: Too many levels of symbolic links"


@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_a_name_that_cannot_be(name):
    assert file_problem(name).startswith("cannot be read: ")
