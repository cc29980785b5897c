"""``quantkit images``, in processes of its own as a user starts it."""

import json
import subprocess
import sys

import pytest
from pictures import PHOTOS, contents, picture_folder

import quantkit as qk


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "quantkit", "images", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_photographs(tmp_path):
    done = run(PHOTOS, "-o", tmp_path / "out", "--streams", 2)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"{PHOTOS} -> {tmp_path / 'out'} (recipe 'imagenet', 3 x 224 x 224, quint8)"
    assert lines[1] == "3 images in 1 shard; 0 failed, 0 skipped"
    assert qk.open_images(tmp_path / "out").shape == (3, 3, 224, 224)
    again = run(PHOTOS, "-o", tmp_path / "out")
    assert again.stdout.splitlines()[1] == "3 images in 1 shard, 1 of them there already; 0 failed, 0 skipped"


def test_failures_are_listed_and_give_exit_code_1(tmp_path):
    source = picture_folder(tmp_path / "in", 8, broken={3})
    options = ("-o", tmp_path / "out", "--preset", "unit", "--shard-size", 3)
    done = run(source, *options)
    assert done.returncode == 1
    assert "7 images in 3 shards; 1 failed, 0 skipped" in done.stdout
    assert "\n2 classes: 'cat', 'dog'\n" in done.stdout
    assert "\nfailed: cat/0003.png: cannot be decoded as PNG" in done.stdout
    assert run(source, *options, "--retry-failed").returncode == 1
    done = run(source, *options, "--restart", "--on-error", "raise")
    assert done.returncode == 2
    assert done.stderr.startswith(f"quantkit: error: {source}/cat/0003.png: cannot be decoded as PNG")
    done = run(source, "-o", tmp_path / "other", "--max-errors", 0, "--preset", "unit")
    assert done.returncode == 2


def test_json(tmp_path):
    source = picture_folder(tmp_path / "in", 8, broken={3})
    done = run(source, "-o", tmp_path / "out", "--preset", "unit", "--set", "color=L", "--scan", "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["images"] == 7
    assert found["shape"] == [1, 20, 16]
    assert found["recipe"]["color"] == "L"
    assert list(found["failures"]) == list(found["scan"]["broken"]) == ["cat/0003.png"]


def test_scan_and_preview_write_no_shards(tmp_path):
    source = picture_folder(tmp_path / "in", 8, broken={3})
    done = run(source, "--scan", "--preview", tmp_path / "sheet.png", "--preset", "unit")
    assert done.returncode == 1
    assert (
        "formats: PNG 7\nmodes: RGB 7\nsizes: 16x20 to 16x20; most often 16x20 7\nclasses: cat 4, dog 4" in done.stdout
    )
    assert "broken: 1\n  cat/0003.png: cannot be decoded" in done.stdout
    assert f"{tmp_path / 'sheet.png'}: 8 images as 'unit' makes them" in done.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "sheet.png"]


def test_ranges_of_shards(tmp_path):
    source = picture_folder(tmp_path / "in", 8)
    options = ("--preset", "unit", "--shard-size", 3)
    run(source, "-o", tmp_path / "whole", *options)
    done = run(source, "-o", tmp_path / "out", *options, "--shard-range", "1:3")
    assert done.returncode == 0
    assert done.stdout.endswith("not complete: other shards are missing\n")
    run(source, "-o", tmp_path / "out", *options, "--shard-range", "0:1")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give -o OUT, or --scan, or --preview FILE"),
        (("-o", "out", "--set", "size"), "wanted FIELD=VALUE, got 'size'"),
        (("-o", "out", "--set", "nope=1"), "recipe: no field 'nope'"),
        (("-o", "out", "--preset", "nope"), "no preset 'nope'"),
        (("-o", "out", "--shard-range", "3"), "--shard-range: wanted A:B with whole numbers, got '3'"),
        (("-o", "out", "--streams", "0"), "'--streams'"),
    ],
)
def test_wrong_usage(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(PHOTOS, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_steps_of_decoding_are_steps_of_the_recipe(tmp_path):
    (tmp_path / "in").mkdir()
    data = (PHOTOS / "astronaut.jpg").read_bytes()
    (tmp_path / "in" / "a.jpg").write_bytes(data[: len(data) // 2])
    strict = run(tmp_path / "in", "-o", tmp_path / "out")
    assert strict.returncode == 1
    steps = ("--tolerant", "--draft", "--frames", "every:2")
    done = run(tmp_path / "in", "-o", tmp_path / "out2", "--json", *steps, "--set", "size=240")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {k: found["recipe"][k] for k in ("tolerant", "draft", "frames", "size")} == {
        "tolerant": True, "draft": 2.0, "frames": "every:2", "size": 240
    }  # fmt: skip
    assert found["partial"] == 1
    again = run(tmp_path / "in", "-o", tmp_path / "out2", *steps, "--set", "size=240")
    assert "cut short and taken as far as they go: 1" in again.stdout
    other = run(tmp_path / "in", "-o", tmp_path / "out2", "--draft", 1.5, "--set", "size=240")
    assert other.returncode == 2
    assert "holds shards of another recipe" in other.stderr
    wrong = run(tmp_path / "in", "-o", tmp_path / "out3", "--frames", "some")
    assert wrong.stderr.startswith("quantkit: error: recipe: frames must be first, all")


def test_names_cannot_break_a_line_or_steer_a_terminal(tmp_path):
    source = picture_folder(tmp_path / "in", 2)
    odd = source / "od\nd\x1b[31m"
    odd.mkdir()
    good = (source / "cat" / "0000.png").read_bytes()
    (odd / "a\n.png").write_bytes(good)
    (odd / "b\x1b[2J.png").write_bytes(good)
    (odd / "c\n\x1b[2J.png").write_bytes(b"broken")
    runs = [
        run(source, "-o", tmp_path / "out", "--preset", "unit"),
        run(source, "--scan"),
        run(source, "-o", tmp_path / "other", "--preset", "unit", "--on-error", "raise"),
    ]
    assert [done.returncode for done in runs] == [1, 1, 2]
    for done in runs:
        text = done.stdout + done.stderr
        assert "\x1b" not in text
        assert all(part.strip() for part in text.splitlines())
    name = "od\\nd\\x1b[31m/c\\n\\x1b[2J.png"
    assert next(line for line in runs[0].stdout.splitlines() if name in line).startswith(f"failed: {name}: ")
    assert sum(line.startswith("failed: ") for line in runs[0].stdout.splitlines()) == 1
    assert any(line.startswith(f"  {name}: ") for line in runs[1].stdout.splitlines())
    assert "\nduplicates: 1 group\n" in runs[1].stdout


def test_one_is_singular(tmp_path):
    done = run(picture_folder(tmp_path / "in", 1), "-o", tmp_path / "out", "--preset", "unit", "--scan")
    assert done.stdout.startswith("1 image, ")
    assert "\n1 image in 1 shard; 0 failed, 0 skipped\n" in done.stdout
    assert "\n1 class: 'cat'\n" in done.stdout
