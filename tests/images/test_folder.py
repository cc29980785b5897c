import os
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quantkit.errors import FormatError, InvalidArgument
from quantkit.images import ImageFolder, PathTable, Recipe, read_codes, walk

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "datasets/digits/train"
PNG = (ROOT / "datasets/digits/train/0/0000.png").read_bytes()
GREY = Recipe(resize="squash", size=8, color="L")


def tree(root, *paths, content=PNG):
    for path in paths:
        file = Path(os.fsdecode(os.fsencode(root) + b"/" + (path if isinstance(path, bytes) else path.encode())))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def found(root):
    return [(f.path.decode("utf-8", "surrogateescape"), f.skipped) for f in walk(root)]


def test_depth_first_and_bytewise(tmp_path):
    tree(tmp_path, "b/2.png", "b/10.png", "b/c/1.png", "a.png", "a/z.png", "Z.png", "ä.png", "b.png", b"\xff.png")
    assert [p for p, _ in found(tmp_path)] == [
        *("Z.png", "a/z.png", "a.png", "b/10.png", "b/2.png", "b/c/1.png", "b.png", "ä.png", "\udcff.png"),
    ]
    assert all(skipped is None for _, skipped in found(tmp_path))


def test_what_is_skipped_and_why(tmp_path):
    tree(tmp_path, "a.png", ".hidden.png", ".git/x.png", "__MACOSX/x.png", "Thumbs.db", "c/desktop.ini", "c/.DS_Store")
    tree(tmp_path, "notes.txt", "BM.txt", "empty", content=b"")
    tree(tmp_path, "BM.txt", content=b"BM is how this text begins, and then it goes on and on")
    tree(tmp_path, "no-suffix", "photo.JPEG")
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "gone.png").symlink_to("nowhere")
    (tmp_path / "link.png").symlink_to("a.png")
    with socket.socket(socket.AF_UNIX) as s:
        here = os.getcwd()
        os.chdir(tmp_path)  # the address of a socket must be short
        s.bind("socket.png")
        os.chdir(here)
        assert dict(found(tmp_path)) == {
            ".git": "hidden",
            ".hidden.png": "hidden",
            "BM.txt": "not an image",
            "Thumbs.db": "hidden",
            "__MACOSX": "hidden",
            "a.png": None,
            "c/.DS_Store": "hidden",
            "c/desktop.ini": "hidden",
            "empty": "not an image",
            "gone.png": "a broken link",
            "link.png": None,
            "no-suffix": None,
            "notes.txt": "not an image",
            "photo.JPEG": None,
            "pipe.png": "not a regular file",
            "socket.png": "not a regular file",
        }


def test_no_folder_is_entered_twice(tmp_path):
    tree(tmp_path, "a/x.png", "b/c/y.png")
    (tmp_path / "b/up").symlink_to(tmp_path)
    (tmp_path / "b/self").symlink_to(".")
    (tmp_path / "z").symlink_to("a")
    (tmp_path / "0").symlink_to("b/c")  # entered first, by its link
    twice = "a link to a folder that was entered already"
    assert found(tmp_path) == [
        ("0/y.png", None),
        ("a/x.png", None),
        ("b/c", twice),
        ("b/self", twice),
        ("b/up", twice),
        ("z", twice),
    ]


def test_a_deep_tree(tmp_path):
    depth = sys.getrecursionlimit() + 50
    here = os.open(tmp_path, os.O_RDONLY)

    def enter(folder):
        nonlocal here
        inner = os.open(folder, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner

    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        enter("d")
    os.close(os.open("x.png", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    try:
        assert found(tmp_path) == [("/".join(["d"] * depth) + "/x.png", None)]
    finally:  # here and not by pytest, which would run out of stack
        os.unlink("x.png", dir_fd=here)
        for _ in range(depth):
            enter("..")
            os.rmdir("d", dir_fd=here)
        os.close(here)


def test_folders_that_cannot_be_read(tmp_path, monkeypatch):
    tree(tmp_path, "a/x.png", "b/y.png")
    real = os.scandir

    def scandir(path):
        if os.fsencode(path).endswith(b"/a"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert found(tmp_path) == [("a", "cannot be read: Permission denied"), ("b/y.png", None)]


def test_work_begins_with_the_first_file(tmp_path, monkeypatch):
    tree(tmp_path, *(f"{i}/x.png" for i in range(20)))
    listed = []
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda p: listed.append(p) or real(p))
    first = next(walk(tmp_path))
    assert first.path == b"0/x.png"
    assert len(listed) == 2


def test_path_table():
    table = PathTable("/data")
    names = [b"a.png", b"", "ü/b.png".encode(), b"\xff.png"]
    for name in names:
        table.append(name)
    expected = ["/data/a.png", "/data/", "/data/ü/b.png", "/data/\udcff.png"]
    assert list(table) == expected
    assert len(table) == 4
    assert table[-1] == expected[-1]
    assert table[1:3] == expected[1:3]
    assert [table.relative(i) for i in range(4)] == names
    assert "4 paths below '/data/'" in repr(table)
    with pytest.raises(IndexError):
        table[4]


def test_the_digits():
    folder = ImageFolder(DIGITS, GREY)
    assert len(folder) == 1352
    assert folder.classes == tuple("0123456789")
    assert folder.labels.dtype == np.int32
    assert np.bincount(folder.labels).tolist() == [134, 137, 133, 138, 136, 137, 136, 135, 131, 135]
    assert all(Path(p).parent.name == folder.classes[k] for p, k in zip(folder.paths, folder.labels, strict=True))
    assert list(folder.paths) == sorted(folder.paths)
    with Image.open(folder.paths[700]) as image:
        pixels = np.asarray(image)[None]
    assert np.array_equal(folder.read_codes(700), pixels)
    values = folder.read(700)
    assert values.dtype == np.float32
    assert np.array_equal(values, pixels.astype(np.float32) / np.float32(255))
    assert folder.skipped == {}
    assert repr(folder) == "ImageFolder(1352 images, 10 classes, recipe 'custom')"


def test_a_recipe_by_name():
    folder = ImageFolder(ROOT / "datasets/photos", "imagenet")
    assert [Path(p).name for p in folder.paths] == ["astronaut.jpg", "chelsea.png", "coffee.jpg"]
    assert folder.classes == ()
    assert folder.labels.tolist() == [-1, -1, -1]
    assert folder.read(1).shape == (3, 224, 224)
    assert np.array_equal(folder.read_codes(2), read_codes(folder.paths[2], folder.recipe))


def test_classes_are_the_folders_right_below(tmp_path):
    tree(tmp_path, "dog/deep/er/1.png", "cat/2.png", "3.png", "Zebra/4.png", ".ipynb_checkpoints/5.png", "cat2.png")
    (tmp_path / "empty").mkdir()
    tree(tmp_path, "texts/readme.txt", content=b"hello")
    folder = ImageFolder(tmp_path, GREY)
    assert folder.classes == ("Zebra", "cat", "dog", "empty", "texts")
    names = [os.path.relpath(p, tmp_path) for p in folder.paths]
    assert dict(zip(names, folder.labels.tolist(), strict=True)) == {
        "3.png": -1,
        "Zebra/4.png": 0,
        "cat/2.png": 1,
        "cat2.png": -1,
        "dog/deep/er/1.png": 2,
    }
    assert folder.skipped == {"hidden": 1, "not an image": 1}


def test_lists_of_files():
    files = sorted(DIGITS.glob("3/*.png"))[:5]
    for source in (files, map(str, files), tuple(files)):
        folder = ImageFolder(source, GREY)
        assert list(folder.paths) == list(map(str, files))
        assert folder.classes == ()
        assert folder.labels.tolist() == [-1] * 5
    one = ImageFolder(files[0], GREY)
    assert list(one.paths) == [str(files[0])]


def test_a_file_that_fails_names_itself(tmp_path):
    tree(tmp_path, "a.png")
    tree(tmp_path, "b.png", content=PNG[:40])
    folder = ImageFolder(tmp_path, GREY)
    assert folder.read(0).shape == (1, 8, 8)
    for read in (folder.read, folder.read_codes):
        with pytest.raises(FormatError, match=rf"^{tmp_path}/b\.png: cannot be decoded as PNG"):
            read(1)


def test_folders_without_images(tmp_path):
    with pytest.raises(FormatError, match=f"^{tmp_path}: holds no image$"):
        ImageFolder(tmp_path, GREY)
    tree(tmp_path, "a.txt", "b.txt", ".c", content=b"text")
    with pytest.raises(FormatError, match=r"holds no image \(skipped: 1 hidden, 2 not an image\)"):
        ImageFolder(tmp_path, GREY)
    with pytest.raises(FormatError, match="no: cannot be listed: No such file or directory"):
        ImageFolder(tmp_path / "no", GREY)
    with pytest.raises(FormatError, match=r"cannot be listed: .*embedded null"):
        ImageFolder("a\0b", GREY)
    with pytest.raises(FormatError, match="empty list"):
        ImageFolder([], GREY)


@pytest.mark.parametrize("source", [3, None, b"bytes", [3], ["\ud800"], {"a": 1}])
def test_sources_that_are_none(source):
    with pytest.raises(InvalidArgument):
        ImageFolder(source, GREY)


def test_samples_are_balanced_sorted_and_seeded():
    folder = ImageFolder(DIGITS, GREY)
    chosen = folder.sample(25)
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert sorted(np.bincount(folder.labels[chosen]).tolist()) == [2] * 5 + [3] * 5
    assert np.array_equal(chosen, folder.sample(25))
    assert not np.array_equal(chosen, folder.sample(25, seed=1))
    assert set(folder.sample(10)) < set(folder.sample(20))
    assert folder.sample(10_000).tolist() == list(range(1352))
    assert folder.sample(0).tolist() == []
    with pytest.raises(InvalidArgument, match="-1"):
        folder.sample(-1)


def test_the_sample_is_frozen():
    assert ImageFolder(DIGITS, GREY).sample(6).tolist() == [85, 204, 420, 641, 985, 1108]


def test_samples_of_uneven_classes(tmp_path):
    tree(tmp_path, "a/1.png", *(f"b/{i}.png" for i in range(10)), *(f"c/{i}.png" for i in range(3)))
    folder = ImageFolder(tmp_path, GREY)
    assert np.bincount(folder.labels[folder.sample(9)]).tolist() == [1, 5, 3]
