"""Sources and outputs behind URLs: the same bytes as on this machine, through S3 with nothing shared but the names."""

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager

import fsspec
import numpy as np
import pytest
from pictures import PHOTOS, contents, picture, picture_folder

import quantkit as qk
from quantkit.errors import FormatError, InvalidArgument, MissingDependency, OutputError
from quantkit.files.urls import is_url, plain_path
from quantkit.images import ImageFolder, scan_images, walk
from quantkit.images.process import process_images


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()


def put(system, source, target):
    """Copy a folder to a filesystem; return its URL."""
    for path in sorted(source.rglob("*")):
        if path.is_file():
            system.pipe_file(f"/{target}/{path.relative_to(source)}", path.read_bytes())
    return f"memory://{target}"


def fetched(system, folder, target):
    for path in system.find(folder):
        local = target / path.removeprefix(folder).lstrip("/")
        local.parent.mkdir(parents=True, exist_ok=True)
        local.write_bytes(system.cat_file(path))
    return target


def without_what_differs(folder):
    """The content of an output but for the source's name and the times of its files."""
    found = contents(folder)
    for path in [folder / "index.json", *folder.rglob("*.jsonl")]:
        found[str(path.relative_to(folder))] = re.sub(r'"(mtime_ns|source)": ?[^,}]+', "", path.read_text())
    return found


@pytest.mark.parametrize("form", ["safetensors", "npy"])
def test_memory_to_memory_is_folder_to_folder(form, tmp_path, memory):
    source = picture_folder(tmp_path / "in", 21, broken={4})
    (source / "notes").write_text("text")
    (source / "dog" / ".hidden.png").write_bytes(b"x")
    (source / "unnamed").write_bytes((source / "cat" / "0000.png").read_bytes())
    url = put(memory, source, "in")
    here = process_images(source, tmp_path / "out", preset="unit", shard_size=6, format=form)
    there = process_images(url, "memory://out/deep", preset="unit", shard_size=6, format=form)
    assert (there.images, there.failed, there.skipped, there.classes, there.bytes_read) == (
        here.images, here.failed, here.skipped, here.classes, here.bytes_read
    )  # fmt: skip
    assert there.images == 21
    copy = fetched(memory, "/out/deep", tmp_path / "copy")
    assert without_what_differs(copy) == without_what_differs(tmp_path / "out")
    images = qk.open_images("memory://out/deep")
    np.testing.assert_array_equal(images[:].int_repr(), qk.open_images(tmp_path / "out")[:].int_repr())
    assert images.manifest[0]["path"] == "cat/0000.png"
    again = process_images(url, "memory://out/deep", preset="unit", shard_size=6, format=form)
    assert again.shards_kept == again.shards == 4
    memory.pipe_file("/in/cat/0001.png", (source / "cat" / "0002.png").read_bytes())
    changed = process_images(url, "memory://out/deep", preset="unit", shard_size=6, format=form)
    assert changed.shards_kept == 3


def test_the_order_is_that_of_a_folder(tmp_path, memory):
    for name in ("b/1.png", "a.png", "a/2.png", "a-b/3.png", "Z.png", "é.png", "a/.x/4.png", "__MACOSX/5.png"):
        picture(tmp_path / "in" / name, 1)
    url = put(memory, tmp_path / "in", "in")
    assert [(f.path, f.skipped) for f in walk(url)] == [(f.path, f.skipped) for f in walk(tmp_path / "in")]
    assert ImageFolder(url, "unit").classes == ImageFolder(tmp_path / "in", "unit").classes == ("a", "a-b", "b")


def test_folders_and_scans_read_urls(tmp_path, memory):
    url = put(memory, PHOTOS, "photos")
    there, here = ImageFolder(url, "imagenet"), ImageFolder(PHOTOS, "imagenet")
    for i in range(len(here)):
        np.testing.assert_array_equal(there.read(i), here.read(i))
    assert scan_images(url).to_dict() == scan_images(PHOTOS).to_dict()
    memory.pipe_file("/photos/bad.png", b"\x89PNG\r\n\x1a\n")
    files = [f"{url}/astronaut.jpg", f"{url}/bad.png", f"{url}/missing.png"]
    result = process_images(files, tmp_path / "out")
    assert result.images == 1
    assert result.failures[files[1]].startswith("cannot be decoded as PNG")
    assert result.failures[files[2]].startswith("cannot be read: No such file")


def test_file_urls_are_paths(tmp_path):
    assert plain_path("file:///a%20b/c") == "/a b/c"
    assert not is_url("file:///x")
    assert not is_url("C:/x")
    assert not is_url("a://")  # one letter is a drive
    assert is_url("s3://bucket/x")
    assert is_url("simplecache::s3://bucket/x")
    source = picture_folder(tmp_path / "in", 4)
    result = qk.process_images(source.as_uri(), (tmp_path / "out").as_uri(), preset="unit")
    assert result.output == str(tmp_path / "out")
    assert len(qk.open_images((tmp_path / "out").as_uri())) == 4


def test_errors_name_the_url(memory, tmp_path):
    with pytest.raises(FormatError, match="memory://missing: cannot be listed: No such file or directory"):
        qk.process_images("memory://missing", tmp_path / "out")
    with pytest.raises(InvalidArgument, match=r"nonsense://x: .*nonsense"):
        qk.process_images("nonsense://x", tmp_path / "out")
    memory.pipe_file("/full/x.txt", b"x")
    with pytest.raises(OutputError, match=r"cannot write memory://full: the folder holds something else .*\(x.txt\)"):
        qk.process_images(PHOTOS, "memory://full")
    with pytest.raises(FormatError, match="memory://full: holds no shards of images"):
        qk.open_images("memory://full")
    put(memory, PHOTOS, "photos")
    with pytest.raises(InvalidArgument, match="lies within the source"):
        qk.process_images("memory://photos", "memory://photos/out")
    with pytest.raises((MissingDependency, FormatError), match=r"^hdfs://nowhere:1/x: "):
        qk.process_images("hdfs://nowhere:1/x", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --------------------------------------------------------------------------------------------------- S3

IN_S3 = """
import sys, fsspec
system = fsspec.filesystem("s3")
system.mkdir("bucket")
system.put(sys.argv[1], "bucket/photos", recursive=True)
"""
OUT_OF_S3 = """
import sys, fsspec
fsspec.filesystem("s3").get("bucket/shards/", sys.argv[1], recursive=True)
"""
READ_S3 = """
import sys
import numpy as np, quantkit as qk
there, here = qk.open_images("s3://bucket/shards"), qk.open_images(sys.argv[1])
np.testing.assert_array_equal(there[:].int_repr(), here[:].int_repr())
assert there.classes == here.classes and there.manifest[3]["path"] == here.manifest[3]["path"]
"""


@contextmanager
def s3_server():
    """A local S3; gives the environment for its clients."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        lines = []
        while not (found := re.search(r"Running on (http://127\.0\.0\.1:\d+)", lines[-1] if lines else "")):
            assert process.poll() is None, lines
            lines.append(process.stderr.readline())
        keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
        yield os.environ | keys | {"AWS_ENDPOINT_URL": found[1], "PYTHONWARNINGS": "ignore"}
    finally:
        process.kill()
        process.communicate()


def run(environment, *command):
    done = subprocess.run(
        [sys.executable, *map(str, command)], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode in {0, 1}, done.stderr
    return done


def test_workers_share_nothing_but_s3(tmp_path):
    source = picture_folder(tmp_path / "in", 20, broken={5})
    qk.process_images(source, tmp_path / "out", preset="unit", shard_size=6)
    options = ["-m", "quantkit", "images", "s3://bucket/photos", "-o", "s3://bucket/shards"]
    options += ["--preset", "unit", "--shard-size", 6, "--scheduler", "local", "--json"]
    with s3_server() as environment:
        run(environment, "-c", IN_S3, source)
        first = json.loads(run(environment, *options).stdout)
        assert (first["images"], first["failed"], first["shards"], first["complete"]) == (19, 1, 4, True)
        again = json.loads(run(environment, *options).stdout)
        assert again["shards_kept"] == 4
        assert run(environment, "-c", READ_S3, tmp_path / "out").returncode == 0
        run(environment, "-c", OUT_OF_S3, tmp_path / "copy")
        bad = [*options[:3], "s3://bucket/none", "-o", tmp_path / "none"]
        done = subprocess.run(
            [sys.executable, *map(str, bad)], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 2
        assert done.stderr.startswith("quantkit: error: s3://bucket/none: cannot be listed: "), done.stderr
    assert without_what_differs(tmp_path / "copy") == without_what_differs(tmp_path / "out")
