"""Progress and tables."""

import io
import sys

import pytest

from quantkit.cli import console


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_without_a_terminal_is_plain_lines(capsys):
    with console.progress() as tell:
        tell("load", 0, None)
        for done in range(1, 101):
            tell("calibrate", done, 100)
        tell("verify", 1, 1)
    assert capsys.readouterr().err == "load ...\ncalibrate: 100 samples\ncalibrate: 100 of 100\nverify: 1 of 1\n"


def test_slow_work_is_told_every_ten_seconds(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    with console.progress() as tell:
        for done in range(30):
            tell("calibrate", done, 100)
            now[0] += 1.0
    assert capsys.readouterr().err == "calibrate: 100 samples\ncalibrate: 10 of 100\ncalibrate: 20 of 100\n"


def test_progress_on_a_terminal_is_a_bar_on_stderr(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with console.progress() as tell:
        tell("calibrate", 1, 2)
        tell("calibrate", 2, 2)
    assert "calibrate" in terminal.getvalue()
    assert "2/2" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_tables_show_names_as_they_are(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    console.show_table(("name", "value"), [("[red]conv[/red]", "1")], left=(0,), title="t")
    assert "[red]conv[/red]" in terminal.getvalue()


def test_json_is_one_strict_object(capsys):
    console.say_json({"a": 1})
    assert capsys.readouterr().out == '{\n  "a": 1\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        console.say_json({"a": float("nan")})


def test_text_beyond_the_encoding_is_escaped(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    console.say("a → b")
    sys.stdout.flush()
    assert raw.getvalue() == b"a \\u2192 b\n"


def test_progress_of_one_is_singular(capsys):
    with console.progress("tensors") as tell:
        tell("quantize", 0, 1)
    assert capsys.readouterr().err == "quantize: 1 tensor\n"


def test_errors_are_one_line_that_steers_nothing(capsys):
    console.fail("a\n\x1b[2Jb\udcff")
    assert capsys.readouterr().err == "quantkit: error: a \\x1b[2Jb\\udcff\n"
