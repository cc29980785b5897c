"""profile: the trace of what ran on streams."""

import json
import threading

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import OutputError, StreamError


def test_the_trace_shows_what_overlapped(tmp_path):
    path = tmp_path / "trace.json"
    first, second, both = qk.Stream(name="first"), qk.Stream(name="second"), threading.Barrier(2)
    with qk.profile(path):
        futures = [s.submit(both.wait, 10) for s in (first, second)]
        with qk.stream(first):
            qk.ops.copy(np.arange(5))
        with qk.StreamPool(1) as pool:
            list(pool.map(abs, [1, 2]))
    assert all(f.exception() is None for f in futures)
    events = json.loads(path.read_text())["traceEvents"]
    rows = {e["args"]["name"]: e["tid"] for e in events if e["ph"] == "M"}
    assert {"first", "second"} <= set(rows)
    (a,), (b,) = [[e for e in events if e["name"] == "wait" and e["tid"] == rows[s]] for s in ("first", "second")]
    assert a["ts"] < b["ts"] + b["dur"]
    assert b["ts"] < a["ts"] + a["dur"]
    (copy,) = [e for e in events if e["name"] == "copy"]
    assert copy["tid"] == rows["first"]
    assert f"{__file__}:" in copy["args"]["queued at"]
    assert sum(e["name"] == "abs" for e in events) == 2


def test_one_at_a_time_and_a_path_that_cannot_be_written(tmp_path):
    with qk.profile(tmp_path / "a.json"), pytest.raises(StreamError, match="another trace"), qk.profile("b.json"):
        pass
    with pytest.raises(OutputError, match="missing"), qk.profile(tmp_path / "missing" / "a.json"):
        pass
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
