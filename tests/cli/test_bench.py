"""`quantkit bench`, on sizes that take no time."""

import json

import pytest

from quantkit import cli, cpu
from quantkit.jobs import bench, race


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(bench, "ELEMENTS", (4096,))
    monkeypatch.setattr(bench, "PRODUCTS", ((4, 8, 16),))
    monkeypatch.setattr(race, "pin", lambda threads: None)


def test_text(capsys):
    assert cli.main(["bench", "--rounds", "1", "--peers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(f"kernels: {cpu.active_isa()}")
    assert lines[1].split()[:4] == ["job", "size", "a", "call"]
    assert "onnxruntime" in lines[1]
    assert [line.split()[0] for line in lines[2:5]] == ["quantize", "dequantize", "matmul"]


def test_json(capsys):
    assert cli.main(["bench", "--rounds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["isa"] == cpu.active_isa()
    assert [row["job"] for row in found["rows"]] == ["quantize", "dequantize", "matmul"]
    assert found["rows"][0]["peers"] == {}


def test_rounds(capsys):
    assert cli.main(["bench", "--rounds", "0"]) == 2
    assert "--rounds" in capsys.readouterr().err
