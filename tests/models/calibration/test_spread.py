"""Calibration over the workers of a cluster, and data that is opened elsewhere: the model of one machine."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import CalibrationError, InvalidArgument
from quantkit.images import ImageFolder
from quantkit.models.calibration.statistics import Calibration, ChannelStats, TensorStats
from quantkit.models.data.image_data import recipe_of
from quantkit.ranges import Histogram

DIGITS = Path(__file__).parents[3] / "datasets" / "digits"
MODEL = DIGITS / "digits.onnx"
COMMAND = "import sys; from quantkit.cli import main\nif __name__ == '__main__': sys.exit(main())"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """40 images of five classes, two of which cannot be read."""
    root = tmp_path_factory.mktemp("digits") / "images"
    for label in "02468":
        (root / label).mkdir(parents=True)
        for path in sorted((DIGITS / "test" / label).iterdir())[:8]:
            shutil.copy(path, root / label)
    for label in "08":
        first = sorted((root / label).iterdir())[0]
        first.write_bytes(first.read_bytes()[:40])
    return root


def quantize(calibration, **options):
    result = qk.quantize_model(MODEL, calibration=calibration, refine=False, measure=False, **options)
    return result.model.SerializeToString(deterministic=True), result.report


@pytest.mark.parametrize("method", ["minmax", "percentile"])
def test_workers_make_the_model_of_one_machine(method, folder, tmp_path):
    pytest.importorskip("distributed")
    alone, report = quantize(folder, calibration_method=method)
    done = subprocess.run(
        [
            *(sys.executable, "-c", COMMAND),
            *("quantize", MODEL, "-o", tmp_path / "int8.onnx", "--calibration", folder, "--no-refine"),
            *("--scheduler", "local", "--calibration-method", method),
        ],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr  # two images cannot be read
    assert (tmp_path / "int8.onnx").read_bytes() == alone
    assert len(report.skipped) == 2
    for path in report.skipped:
        assert path in done.stdout


def test_opened_shards_urls_and_folders_calibrate_alike(folder, tmp_path):
    fsspec = pytest.importorskip("fsspec")
    alone, _ = quantize(folder)
    qk.process_images(folder, tmp_path / "shards", preset=recipe_of(MODEL))
    shards = qk.open_images(tmp_path / "shards")
    assert quantize(tmp_path / "shards")[0] == quantize(shards)[0]
    memory = fsspec.filesystem("memory")
    for path in folder.rglob("*.png"):
        memory.pipe_file(f"/digits-calibration/{path.relative_to(folder)}", path.read_bytes())
    try:
        url, report = quantize("memory://digits-calibration")
        assert url == alone
        assert sorted(report.skipped)[0].startswith("memory://digits-calibration/0/")
        with pytest.raises(CalibrationError, match="memory://digits-calibration/nothing: "):
            quantize("memory://digits-calibration/nothing")
    finally:
        memory.rm("/digits-calibration", recursive=True)
    with pytest.raises(CalibrationError, match=r"memory://x/a\.npz: arrays are read from this machine"):
        quantize("memory://x/a.npz")


def test_opened_images_of_another_recipe(folder):
    with pytest.raises(CalibrationError, match="the given images: its images are made by the recipe 'unit'"):
        quantize(ImageFolder(folder, "unit"))


def test_what_workers_cannot_reach(folder):
    with pytest.raises(InvalidArgument, match=r"open the calibration data themselves: .*, got \[\{"):
        quantize([{"x": np.zeros(1, np.float32)}], scheduler="local")
    with pytest.raises(InvalidArgument, match="scheduler: workers calibrate static ranges: mode dynamic has none"):
        quantize(folder, mode="dynamic", scheduler="local")


def seen(low, high, counts, channels):
    histogram = Histogram(np.array(counts, np.int64), -1.0, 1.0)
    stats = TensorStats(low, high, 1, 2, (2, len(counts)), histogram)
    return Calibration({"x": stats}, {"x": channels}, batches=2, warnings=["odd"])


def test_statistics_merge():
    a = seen(-1.0, 0.5, [1, 2], ChannelStats(*(np.array([v]) for v in (-1.0, 0.5, 4.0, 1.0)), 3, np.array([[1, 0]])))
    b = seen(-0.5, 2.0, [3, 4], ChannelStats(*(np.array([v]) for v in (-0.5, 2.0, 5.0, 2.0)), 4, np.array([[2, 5]])))
    whole = Calibration()
    whole.merge(a)
    whole.merge(b)
    x, channels = whole.tensors["x"], whole.channels["x"]
    assert (x.low, x.high, x.nonfinite, x.batches, x.shape) == (-1.0, 2.0, 2, 4, (2, 2))
    assert x.histogram.counts.tolist() == [4, 6]
    assert (channels.low.tolist(), channels.high.tolist(), channels.count) == ([-1.0], [2.0], 7)
    assert (channels.squares.tolist(), channels.sums.tolist()) == ([9.0], [3.0])
    assert channels.counts.tolist() == [[3, 5]]
    assert (whole.batches, whole.warnings) == (4, ["odd"])
    assert a.tensors["x"].histogram.counts.tolist() == [1, 2]
