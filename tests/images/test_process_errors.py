"""What `process_images` refuses, and what a file that cannot be decoded means."""

import pytest
from pictures import PHOTOS, picture_folder

import quantkit as qk
from quantkit.errors import FormatError, InvalidArgument, OutputError


def test_on_error_raise_names_the_first_broken_file(tmp_path):
    source = picture_folder(tmp_path / "in", 10, broken={5, 8})
    for streams in (1, 4):
        with pytest.raises(FormatError, match=r"dog/0005\.png: cannot be decoded"):
            qk.process_images(source, tmp_path / "out", preset="unit", on_error="raise", shard_size=2, streams=streams)
    # What was finished stays, and the next run goes on.
    result = qk.process_images(source, tmp_path / "out", preset="unit", shard_size=2)
    assert (result.shards, result.images, result.failed) == (5, 8, 2)
    assert result.shards_kept >= 1


def test_max_errors(tmp_path):
    source = picture_folder(tmp_path / "in", 10, broken={5, 8})
    with pytest.raises(FormatError, match=r"0008\.png: .* \(and that is more than 1 failures\)"):
        qk.process_images(source, tmp_path / "out", preset="unit", max_errors=1)
    assert qk.process_images(source, tmp_path / "out2", preset="unit", max_errors=2).failed == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"streams": 0}, "streams must be a whole number from 1 to 256, got 0"),
        ({"streams": 257}, "streams must be a whole number from 1 to 256, got 257"),
        ({"streams": True}, "streams must be a whole number from 1 to 256, got True"),
        ({"shard_size": 0}, "shard_size must be a whole number >= 1"),
        ({"on_error": "zero"}, "on_error must be 'skip' or 'raise', got 'zero'"),
        ({"format": "zarr"}, "format must be one of safetensors, npy"),
        ({"shard_range": (3, 3)}, "shard_range must be"),
        ({"max_errors": -1}, "max_errors must be"),
        ({"scheduler": ""}, "scheduler must be an address"),
        ({"scheduler": 3}, "scheduler must be an address"),
        ({"preset": "nope"}, "no preset 'nope'"),
    ],
)
def test_arguments(arguments, message, tmp_path):
    with pytest.raises(InvalidArgument, match=message):
        qk.process_images(PHOTOS, tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_sources_and_outputs_that_cannot_be(tmp_path):
    with pytest.raises(FormatError, match="missing: cannot be listed"):
        qk.process_images(tmp_path / "missing", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match="empty: holds no image"):
        qk.process_images(tmp_path / "empty", tmp_path / "out")
    with pytest.raises(FormatError, match="the list of files: holds no image"):
        qk.process_images([], tmp_path / "out")
    with pytest.raises(InvalidArgument, match="wanted a folder, a file or a list of files, got int"):
        qk.process_images(3, tmp_path / "out")
    source = picture_folder(tmp_path / "in", 2)
    with pytest.raises(InvalidArgument, match="lies within the source"):
        qk.process_images(source, source / "out")
    with pytest.raises(OutputError, match=r"holds something else than shards \(0000\.png\)"):
        qk.process_images(PHOTOS, source / "cat")
    with pytest.raises(OutputError, match=r"cannot write .*: No such file or directory"):
        qk.process_images(source, tmp_path / "a" / "b")
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="it is not a folder"):
        qk.process_images(source, tmp_path / "file")
    assert not (tmp_path / "out").exists()
