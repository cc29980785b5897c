"""Links in a circle, shortages of the machine, and damaged outputs."""

import errno
import os
import subprocess
import sys

import pytest
from pictures import DIGITS, picture_folder

import quantkit as qk
from quantkit.errors import FormatError, MachineError, OutOfMemory
from quantkit.images import decode
from quantkit.images.folder import ImageFolder
from quantkit.images.preview import contact_sheet
from quantkit.images.scan import scan_images


@pytest.fixture
def circles(tmp_path):
    source = picture_folder(tmp_path / "in", 4)
    for name, target in (("self", "self"), ("one", "two"), ("two", "one"), ("cat/deep", "deep")):
        os.symlink(target, source / name)
    return source


def test_links_in_a_circle_are_skipped_as_broken_links(circles, tmp_path):
    result = qk.process_images(circles, tmp_path / "out", preset="unit")
    assert (result.images, result.failed, result.skipped, result.classes) == (4, 0, 4, ("cat", "dog"))
    skipped = list(qk.open_images(tmp_path / "out").manifest.with_status("skipped"))
    assert {line["path"]: line["error"] for line in skipped} == dict.fromkeys(
        ("cat/deep", "one", "self", "two"), "a broken link"
    )
    assert scan_images(circles).skipped == {"a broken link": 4}
    assert ImageFolder(circles, "unit").skipped == {"a broken link": 4}
    assert len(contact_sheet(circles, tmp_path / "sheet.png", preset="unit")) == 4
    assert len(qk.predict_images(DIGITS / "digits.onnx", circles).rows) == 4


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.EMFILE, "Too many open files"), MachineError),
        (OSError(errno.EIO, "Input/output error"), MachineError),
        (MemoryError(), OutOfMemory),
    ],
)
def test_a_shortage_ends_the_run_and_is_no_failure_of_an_image(error, kind, tmp_path, monkeypatch):
    source = picture_folder(tmp_path / "in", 6)
    arguments = {"preset": "unit", "shard_size": 2, "streams": 1}
    load = decode._load
    calls = []

    def failing(*given):
        calls.append(given)
        if len(calls) == 6:
            raise error
        return load(*given)

    with monkeypatch.context() as patch:
        patch.setattr(decode, "_load", failing)
        with pytest.raises(kind, match=r"cannot be read: "):
            qk.process_images(source, tmp_path / "out", **arguments)
        calls[:] = [()] * 5
        with pytest.raises(kind):
            scan_images(source, streams=1)
        calls[:] = [()] * 5
        with pytest.raises(kind):
            contact_sheet(source, tmp_path / "sheet.png", preset="unit")
        calls[:] = [()] * 5
        with pytest.raises(kind):
            qk.predict_images(DIGITS / "digits.onnx", source, streams=1)
    result = qk.process_images(source, tmp_path / "out", **arguments)
    assert (result.images, result.failed) == (6, 0)
    assert result.shards_kept >= 1


def test_a_shortage_while_a_folder_is_listed_skips_nothing(tmp_path, monkeypatch):
    source = picture_folder(tmp_path / "in", 2)
    (source / "text").write_text("no image")
    monkeypatch.setattr(sys.modules["quantkit.images.walk_path"], "open", _no_descriptor, raising=False)
    with pytest.raises(MachineError, match="text: cannot be read: too many open files"):
        scan_images(source)


def _no_descriptor(*given):
    raise OSError(errno.EMFILE, "Too many open files")


def test_few_descriptors_give_one_error_and_the_next_run_is_whole(tmp_path):
    source = DIGITS / "train"
    command = [sys.executable, "-m", "quantkit", "images", str(source), "-o", str(tmp_path / "out")]
    command += ["--preset", str(DIGITS / "digits.onnx"), "--shard-size", "100"]
    limited = ["sh", "-c", 'ulimit -n 12; exec "$@"', "sh", *command, "--streams", "32"]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in {0, 2}, done.stdout
    if done.returncode:
        assert "too many open files" in done.stderr
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "; 0 failed" in done.stdout


@pytest.mark.parametrize("content", [b"", b'{"path":"a"}\n', None])
def test_a_damaged_manifest_is_named(content, tmp_path):
    qk.process_images(picture_folder(tmp_path / "in", 3), tmp_path / "out", preset="unit")
    path = tmp_path / "out" / "manifest.jsonl"
    path.write_bytes(path.read_bytes()[:-5] if content is None else content)
    images = qk.open_images(tmp_path / "out")
    with pytest.raises(FormatError, match=r"manifest\.jsonl: is damaged: it has .* image"):
        images.about(0)
    with pytest.raises(FormatError, match=r"manifest\.jsonl"):
        images.paths[0]
    with pytest.raises(IndexError):
        images.about(3)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"other": 1}', b"\xff\xfe"])
def test_a_damaged_index_is_named(content, tmp_path):
    qk.process_images(picture_folder(tmp_path / "in", 3), tmp_path / "out", preset="unit")
    (tmp_path / "out" / "index.json").write_bytes(content)
    with pytest.raises(FormatError, match=r"index\.json: is no index of shards"):
        qk.predict_images(DIGITS / "digits.onnx", tmp_path / "out")
    with pytest.raises(FormatError, match=r"index\.json: is no index of shards"):
        ImageFolder(tmp_path / "out", "unit")
