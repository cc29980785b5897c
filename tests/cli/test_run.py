"""``quantkit run``, in processes of its own as a user starts it."""

import json
import subprocess
import sys

from pictures import DIGITS, picture_folder


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "quantkit", "run", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_digits(tmp_path):
    done = run(DIGITS / "digits.onnx", "--images", DIGITS / "test", "-o", tmp_path / "p.csv", "--top", 1)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].startswith("445 images, 0 failed; ")
    assert lines[2] == "the class of their folder: 441 of 445 (99.10 %)"
    assert (tmp_path / "p.csv").read_text().startswith("path,label,error,class_1,score_1\n0/1342.png,0,,0,4.9")


def test_json_names_and_failures(tmp_path):
    source = picture_folder(tmp_path / "in", 4, broken={3})
    (tmp_path / "names.txt").write_text("\n".join("abcdefghij"))
    done = run(
        DIGITS / "digits.onnx", "--images", source, "-o", tmp_path / "p.jsonl", "--classes", tmp_path / "names.txt",
        "--json",
    )  # fmt: skip
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert (found["images"], found["failed"], found["accuracy"]) == (3, 1, None)
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert {item["class"] for row in rows for item in row["top"]} <= set("abcdefghij")
    assert rows[3]["error"].startswith("cannot be decoded as PNG")


def test_wrong_usage(tmp_path):
    source = picture_folder(tmp_path / "in", 1)
    model = DIGITS / "digits.onnx"
    for arguments, message in (
        ((tmp_path / "missing.onnx", "--images", source, "-o", tmp_path / "p.csv"), "cannot be read: No such file"),
        ((model, "--images", tmp_path / "missing", "-o", tmp_path / "p.csv"), "cannot be listed"),
        ((model, "--images", source, "-o", tmp_path / "p.xml"), "wanted a name that ends in .csv, .jsonl, .npz"),
        ((model, "--images", source), "missing option '-o'"),
        (
            (model, "--images", source, "-o", tmp_path / "p.csv", "--classes", tmp_path / "no"),
            "no: cannot be read: No such file",
        ),
    ):
        done = run(*arguments)
        assert done.returncode == 2
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]


def test_names_cannot_break_a_line_or_steer_a_terminal(tmp_path):
    source = picture_folder(tmp_path / "in", 1)
    (source / "a\nb\x1b[2J.png").write_bytes(b"broken")
    done = run(DIGITS / "digits.onnx", "--images", source, "-o", tmp_path / "p.csv")
    assert done.returncode == 1
    assert "\x1b" not in done.stdout + done.stderr
    assert "\nfailed: a\\nb\\x1b[2J.png: is not an image" in done.stdout
    assert "1 image, 1 failed" in done.stdout
