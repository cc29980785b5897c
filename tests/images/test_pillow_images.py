"""All of Pillow's own test images, the hostile ones included, where its source distribution is unpacked.

``PILLOW_SOURCE=pillow-13.0.0 pytest tests/images/test_pillow_images.py -s`` prints the outcomes; the archive is
pillow-VERSION.tar.gz on PyPI.
"""

import json
import os
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SOURCE = os.environ.get("PILLOW_SOURCE")
COMMAND = "import sys; from quantkit.cli import main; sys.exit(main())"


@pytest.mark.skipif(SOURCE is None, reason="PILLOW_SOURCE does not name Pillow's unpacked source distribution")
def test_every_file_has_its_outcome(tmp_path):
    folder = Path(SOURCE or "") / "Tests" / "images"
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "images", str(folder), "-o", str(tmp_path / "out"), "--streams", "2", "--json"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    assert done.returncode == 1, done.stderr[-1000:]  # hostile files fail
    # Nothing but the progress: neither a traceback nor what the C libraries print.
    assert all(line.startswith("files: ") for line in done.stderr.splitlines()), done.stderr
    lines = [json.loads(line) for line in (tmp_path / "out" / "manifest.jsonl").read_bytes().splitlines()]
    seen = {line["path"] for line in lines}
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert len(lines) == len(seen)
    assert files <= seen
    outcomes = Counter(line["status"] for line in lines)
    result = json.loads(done.stdout)
    assert [outcomes[k] for k in ("ok", "failed", "skipped")] == [result[k] for k in ("images", "failed", "skipped")]
    assert all(line["error"] for line in lines if line["status"] != "ok")
    assert outcomes["ok"] >= 600
    assert peak < 1024
    print(f"\n{dict(outcomes)}; peak {peak} MiB, {result['seconds']:.1f} s")
