"""The command line as a whole: exit codes, one line an error, never a traceback."""

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import click
import onnx
import pytest

from quantkit import cli
from quantkit.cli import app
from quantkit.errors import CalibrationError


@pytest.fixture
def raising(monkeypatch):
    """Make `quantkit doctor` raise what the test wants."""

    def install(error):
        def callback(**_):
            raise error

        monkeypatch.setattr(app.group.commands["doctor"], "callback", callback)

    return install


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (CalibrationError("a.npz: no data"), 2, "quantkit: error: a.npz: no data"),
        (CalibrationError("two\nlines\n"), 2, "quantkit: error: two lines"),
        (KeyError("x"), 2, "quantkit: error: unexpected KeyError: 'x' (set QUANTKIT_TRACEBACK=1 to see where; "),
        (RuntimeError(), 2, "quantkit: error: unexpected RuntimeError (set QUANTKIT_TRACEBACK=1"),
        (MemoryError(), 2, "quantkit: error: out of memory"),
        (KeyboardInterrupt(), 130, "quantkit: interrupted, nothing half-written"),
        (click.Abort(), 130, "quantkit: interrupted, nothing half-written"),
        (
            ModuleNotFoundError("No module named 'onnxruntime.capi'", name="onnxruntime.capi"),
            2,
            "quantkit: error: this needs onnxruntime, which is not installed: pip install onnxruntime",
        ),
        (
            ModuleNotFoundError("No module named 'PIL'", name="PIL"),
            2,
            "quantkit: error: this needs pillow, which is not installed: pip install pillow",
        ),
        (
            ModuleNotFoundError("No module named 'quantkit.x'", name="quantkit.x"),
            2,
            "quantkit: error: unexpected No module named 'quantkit.x'; the installation of quantkit is damaged",
        ),
    ],
)
def test_an_error_is_one_line_and_a_code(raising, capsys, monkeypatch, error, code, line):
    monkeypatch.delenv("QUANTKIT_TRACEBACK", raising=False)
    raising(error)
    assert cli.main(["doctor"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.lstrip("\n").startswith(line)
    assert err.strip("\n").count("\n") == 0


def test_a_traceback_on_request(raising, capsys, monkeypatch):
    monkeypatch.setenv("QUANTKIT_TRACEBACK", "1")
    raising(CalibrationError("a.npz: no data"))
    assert cli.main(["doctor"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last)")
    assert err.endswith("quantkit: error: a.npz: no data\n")


def test_names_that_are_no_text_are_shown(raising, capsys):
    raising(CalibrationError("bad\udcff.npz: no data"))
    assert cli.main(["doctor"]) == 2
    assert capsys.readouterr().err == "quantkit: error: bad\\udcff.npz: no data\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["quantize"], "missing argument 'MODEL'; see quantkit quantize --help"),
        (["quantize", "m.onnx"], "missing option '-o' / '--output'; see quantkit quantize --help"),
        (["quantize", "m.onnx", "-o", "x", "--mode", "magic"], "invalid value for '--mode': 'magic' is not one of"),
        (["quantize", "m.onnx", "-o", "x", "--samples", "0"], "invalid value for '--samples': 0 is not in the range"),
        (["quantize", "m.onnx", "-o", ""], "invalid value for '-o' / '--output': wanted a path, got an empty text"),
        (["quantize", "", "-o", "x"], "invalid value for 'MODEL': wanted a path, got an empty text"),
        (["quantize", "m.onnx", "-o", "x", "--min-sqnr", "nan"], "invalid value for '--min-sqnr': wanted a finite"),
        (["quantize", "m.onnx", "-o", "x", "--min-argmax", "1.5"], "invalid value for '--min-argmax': 1.5 is not in"),
        (["compare", "a", "b", "--data", "x", "--max-drop", "-1"], "invalid value for '--max-drop': -1.0 is not in"),
        (["weights", "a", "-o", "b", "--min-sqnr", "inf"], "invalid value for '--min-sqnr': wanted a finite number"),
        (["run", "m", "--images", "i", "-o", "o", "--threads", "999"], "invalid value for '--threads': 999 is not in"),
        (["images", "i", "-o", "o", "--streams", "999"], "invalid value for '--streams': 999 is not in the range"),
        (["nonsense"], "no such command 'nonsense'; see quantkit --help"),
        (["compare", "a", "b", "--frobnicate"], "no such option"),
        (["compare", "a", "b"], "missing option '--data'; see quantkit compare --help"),
    ],
)
def test_wrong_usage(capsys, arguments, line):
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"quantkit: error: {line}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["quantize", "--help"], ["--version"]])
def test_help_and_version(capsys, arguments):
    assert cli.main(arguments) == 0
    out, err = capsys.readouterr()
    assert "quantkit" in out
    assert err == ""


def test_exit_codes_are_in_the_help(capsys):
    cli.main(["--help"])
    assert "0 done and verified; 1 finished" in " ".join(capsys.readouterr().out.split())


def python(code, **more):
    """Run `code` in a fresh interpreter."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, **more)


@pytest.mark.parametrize("module", ["click", "rich"])
def test_without_its_own_libraries_there_is_one_clear_line(module):
    done = python(
        f"import sys; sys.modules[{module!r}] = None\nfrom quantkit.cli import main\nsys.exit(main(['doctor']))"
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"quantkit: error: the command line needs {module}, which is not installed: pip install {module}\n"
    )


def test_the_command_line_starts_without_the_heavy_libraries():
    heavy = ["onnx", "onnxruntime", "PIL", "safetensors"]
    done = python(
        f"import sys\nfor name in {heavy}: sys.modules[name] = None\n"
        "from quantkit.cli import main\nsys.exit(main(['quantize', '--help']))"
    )
    assert (done.returncode, done.stderr) == (0, "")


def command(*arguments, **more):
    return subprocess.run(
        [sys.executable, "-m", "quantkit", *arguments], capture_output=True, text=True, timeout=60, check=False, **more
    )


def test_python_dash_m():
    done = command("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("quantkit, version ")


def test_a_closed_pipe_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "quantkit", "doctor"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_said():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "quantkit", "doctor"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "quantkit: error: cannot write to standard output: No space left on device\n"


DIGITS = str(Path(__file__).parents[2] / "datasets" / "digits" / "digits.onnx")
SHELL = '"$0" -m quantkit "$@"'


def shell(redirection, *arguments):
    """Run the command under a shell that redirects its standard streams."""
    return subprocess.run(
        ["sh", "-c", f"{SHELL} {redirection}", sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("name", ["doctor", "inspect", "quantize", "weights"])
def test_closed_standard_streams_are_no_error(tmp_path, name, closed):
    output = str(tmp_path / "o.safetensors")
    more = {"quantize": [DIGITS, "-o", output, "--mode", "dynamic"], "weights": [DIGITS, "-o", output]}
    done = shell(closed, name, *more.get(name, [DIGITS] if name == "inspect" else []))
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr
    if name == "quantize":  # nothing that was printed went into the file opened under the number of standard output
        onnx.load(output)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("name", ["quantize", "weights"])
def test_a_full_disk_behind_stdout_does_not_undo_the_work(tmp_path, name):
    output = tmp_path / "out"
    done = shell(">/dev/full", name, DIGITS, "-o", str(output), *(["--mode=dynamic"] if name == "quantize" else []))
    assert done.returncode == 1
    line = f"cannot write to standard output: No space left on device; {output} is written"
    assert done.stderr.splitlines()[-1] == f"quantkit: error: {line}"
    assert output.stat().st_size > 10_000


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_help_on_a_full_disk():
    done = shell(">/dev/full", "--help")
    assert done.returncode == 2
    assert done.stderr == "quantkit: error: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize(("name", "value"), [("QUANTKIT_ISA", "foo"), ("QUANTKIT_NUM_THREADS", "x")])
def test_an_environment_that_the_kernels_refuse(name, value):
    done = command("doctor", env={**os.environ, name: value})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"quantkit: error: {name}: ")
    assert done.stderr.count("\n") == 1


INTERRUPTED_IMPORT = """
import builtins, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
real = builtins.__import__

def slow(name, *rest, **more):
    if name == "click":
        os.kill(os.getpid(), signal.SIGINT)
    return real(name, *rest, **more)

builtins.__import__ = slow
from quantkit.cli import main
sys.exit(main(["doctor"]))
"""


def test_an_interrupted_import_is_one_line():
    done = python(INTERRUPTED_IMPORT)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "quantkit: interrupted, nothing half-written\n"


def test_warnings_are_for_who_writes_code(monkeypatch, capsys):
    def callback(**_):
        warnings.warn("overflow encountered in square", RuntimeWarning, stacklevel=1)
        return 0

    monkeypatch.setattr(app.group.commands["doctor"], "callback", callback)
    assert cli.main(["doctor"]) == 0
    assert capsys.readouterr() == ("", "")


WAITS = """
import signal, sys, time
# Ignored where the tests run in the background, or without a terminal.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from quantkit.cli import app, main
from quantkit.files import atomic_write

def callback(**_):
    with atomic_write(sys.argv[1]) as file:
        file.write(b"half")
        print("ready", flush=True)
        time.sleep(60)

app.group.commands["doctor"].callback = callback
sys.exit(main(["doctor"]))
"""


@pytest.mark.parametrize(
    ("sent", "code", "line"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "hung up")],
)
def test_a_stopped_run_leaves_nothing(tmp_path, sent, code, line):
    with subprocess.Popen(
        [sys.executable, "-c", WAITS, str(tmp_path / "out.onnx")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.05)
        process.send_signal(sent)
        _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert err.lstrip("\n") == f"quantkit: {line}, nothing half-written\n"
    assert list(tmp_path.iterdir()) == []
