"""What a large file costs in anonymous memory: the size of its tensors does not show."""

import subprocess
import sys

import numpy as np
import pytest

from quantkit.files import create_tensors

SCRIPT = """
import sys, threading
import quantkit as qk
import quantkit.weights

def anonymous():
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024

start = peak = anonymous()
stop = threading.Event()
def watch():
    global peak
    while not stop.wait(0.002):
        peak = max(peak, anonymous())
thread = threading.Thread(target=watch)
thread.start()
qk.quantize_weights(sys.argv[1], sys.argv[2], streams=int(sys.argv[3]), granularity=sys.argv[4])
qk.dequantize_weights(sys.argv[2], sys.argv[2] + ".float", streams=int(sys.argv[3]))
stop.set()
thread.join()
print(peak - start)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/smaps_rollup is Linux's")
@pytest.mark.parametrize(("streams", "granularity"), [(2, "channel"), (4, "tensor"), (1, "block")])
def test_200_mb_in_20_mb(tmp_path, streams, granularity):
    source, out = tmp_path / "m.safetensors", tmp_path / "q.safetensors"
    shapes = {f"t{i}": (2048, 4096) for i in range(5)} | {"wide": (4, 2_500_000)}
    values = np.random.default_rng(0).normal(size=10_000_000).astype(np.float32)
    with create_tensors(source, {n: ("F32", s) for n, s in shapes.items()}) as writer:
        for name, shape in shapes.items():
            writer.write(name, values[: int(np.prod(shape))].reshape(shape))
    del values
    assert source.stat().st_size > 200_000_000
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(source), str(out), str(streams), granularity],
        check=True,
        capture_output=True,
        text=True,
    )
    # Each stream holds pieces of about a megabyte; the largest tensor has 40, the file 208.
    assert int(run.stdout) < 8_000_000 + 3_000_000 * streams
