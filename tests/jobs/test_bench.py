import pytest

from quantkit.errors import InvalidArgument
from quantkit.jobs import bench as job


def test_every_row_names_its_rate_and_its_peers(monkeypatch):
    monkeypatch.setattr(job, "ELEMENTS", (4096,))
    monkeypatch.setattr(job, "PRODUCTS", ((4, 8, 16),))
    rows = list(job.bench(peers=True, rounds=1))
    assert [(row.job, row.size, row.unit) for row in rows] == [
        ("quantize", "4 Ki", "GB/s"),
        ("dequantize", "4 Ki", "GB/s"),
        ("matmul", "4x8x16", "GOP/s"),
    ]
    for row in rows:
        assert row.seconds > 0
        assert row.rate > 0
        assert "onnxruntime" in row.peers
    assert rows[0].copy > 0
    assert rows[2].copy is None
    assert rows[0].to_dict()["size"] == "4 Ki"


def test_contestants_compute_the_same():
    for op in ("quantize", "dequantize"):
        for call in job.affine_contestants(op, 1000, peers=True).values():
            call()


def test_rounds_are_checked():
    with pytest.raises(InvalidArgument, match="rounds must be at least 1, got 0"):
        next(job.bench(rounds=0))
