"""`quantkit inspect`: text and JSON."""

import json

import numpy as np
import pytest
from small_models import linear, model, qdq

from quantkit import cli


@pytest.fixture
def saved(tmp_path):
    def save(content):
        (tmp_path / "m.onnx").write_bytes(content)
        return str(tmp_path / "m.onnx")

    return save


def test_a_quantized_model(saved, capsys):
    path = saved(qdq())
    assert cli.main(["inspect", path]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0].startswith(f"{path}: ")
    assert lines[0].endswith("opset ai.onnx 17, IR version 8")
    assert "input   x: float32[N, 4]" in lines
    assert "output  y: float32[N, 3]" in lines
    assert "form: QDQ (QuantizeLinear and DequantizeLinear around the operators)" in lines
    assert "weights in 8 bits or fewer: 100.0 %" in lines
    assert "5 nodes: 3 DequantizeLinear, 1 Gemm, 1 QuantizeLinear" in lines
    assert lines[-5:] == [
        "quantized tensors: 3",
        "tensor  kind        type       scales             scale  zero point  range",
        "x       activation  uint8           1              0.02         128  -2.56 .. 2.54",
        "wq      weight      int8   3 (axis 1)      0.01 .. 0.03           0  -3.84 .. 3.81",
        "bq      bias        int32  3 (axis 0)  0.0002 .. 0.0006           0  -1.288e+06 .. 1.288e+06",
    ]


def test_a_float_model(saved, capsys):
    assert cli.main(["inspect", saved(linear(np.ones((4, 3))))]) == 0
    out = capsys.readouterr().out
    assert "form: float, nothing is quantized" in out
    assert "quantized tensors" not in out


def test_a_model_of_no_nodes(saved, capsys):
    assert cli.main(["inspect", saved(model([], [("x", np.float32, [1])], [("x", np.float32, [1])]))]) == 0
    assert "no nodes" in capsys.readouterr().out


def test_json(saved, capsys):
    assert cli.main(["inspect", saved(qdq()), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["form"] == ["qdq"]


def test_a_scale_of_zero_is_one_line(saved, capsys):
    assert cli.main(["inspect", saved(qdq(x_scale=0.0))]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("m.onnx: scale 'xs' of QuantizeLinear 'q' must be finite and > 0, got 0.0\n")
    assert err.count("\n") == 1


def test_a_terminal_gets_a_table(saved, capsys, monkeypatch):
    monkeypatch.setattr("quantkit.cli.inspect.on_terminal", lambda: True)
    cli.main(["inspect", saved(qdq())])
    assert "┃" in capsys.readouterr().out
