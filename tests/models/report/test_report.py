"""A report in JSON, in text and as a page."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from quantkit import text as words
from quantkit.models.report import text
from quantkit.models.report.report import SCHEMA, BlockCost, NodeRecord, Report, TensorRange
from quantkit.models.verification.agreement import (
    Accuracy,
    Agreement,
    Decisions,
    OutputAgreement,
    Thresholds,
    WorstSlice,
)
from quantkit.models.verification.execution import Execution
from quantkit.models.verification.latency import Latency


def full():
    return Report(
        source="models/net.onnx",
        output="out/net.int8.onnx",
        options={"mode": "static", "format": "qdq", "target": "onnxruntime"},
        nodes=[
            NodeRecord("conv<1>", "Conv", "static", "convolution with constant weights", 900, 9000),
            NodeRecord("emb", "Gather", "weight_only", "a table", 50, None),
            NodeRecord("pool", "MaxPool", "passthrough", "moves codes"),
            NodeRecord("fc", "Gemm", "float", "its weights are not constant", 50, 1000),
            NodeRecord("s1", "Softmax", "float", "is not worth it"),
            NodeRecord("s2", "Softmax", "float", "is not worth it"),
        ],
        ranges=[TensorRange("x", 0.0, 255.0, 1.0, 0), TensorRange("h<2>", -1e-3, 1e-3, 1e-5, 128, "uint8", 3)],
        agreement=Agreement(
            90,
            [
                OutputAgreement(
                    "probs",
                    "float32",
                    900,
                    31.26,
                    0.99951,
                    0.0123,
                    0.0,
                    1.0,
                    worst_slice=WorstSlice(1, 7, 22.5, 0.0, 0.5),
                    decisions=Decisions(1, 90, 89),
                ),
                OutputAgreement("ids", "int64", 90, equal=0.995),
            ],
            Accuracy(90, 88, 87),
            ["said by verification"],
        ),
        latency=Latency(2.0, 1.0, 0.013, 50),
        float_bytes=120_300,
        int8_bytes=35_200,
        calibration_samples=270,
        timings={"calibrate": 1.25, "verify": 0.5},
        warnings=["said by the quantizer"],
        skipped={"a.png": "cut short"},
        versions={"quantkit": "0.1.0"},
    )


def test_shares_count_weights_held_and_work_done_in_int8():
    report = full()
    assert report.int8_weight_share == 0.95
    assert report.int8_mac_share == 0.9
    assert report.size_ratio == pytest.approx(0.2926, abs=1e-4)
    assert report.decisions() == {"static": 1, "weight_only": 1, "passthrough": 1, "float": 3}


def test_shares_of_an_empty_report_are_unknown():
    report = Report()
    assert (report.int8_weight_share, report.int8_mac_share, report.size_ratio) == (None, None, None)
    assert json.loads(report.to_json())["agreement"] is None


def test_float_nodes_are_grouped_by_reason_the_heaviest_first():
    groups = full().float_reasons()
    assert [(reason, [node.name for node in nodes]) for reason, nodes in groups] == [
        ("its weights are not constant", ["fc"]),
        ("is not worth it", ["s1", "s2"]),
    ]


def test_an_unknown_decision_is_refused():
    with pytest.raises(ValueError, match="decision must be one of static, dynamic"):
        NodeRecord("n", "Conv", "int8", "")


def test_json_is_strict_and_complete():
    plain = json.loads(full().to_json())
    assert plain["schema"] == SCHEMA == 1
    assert list(plain) == [
        "schema",
        "source",
        "output",
        "options",
        "size",
        "int8_weight_share",
        "int8_mac_share",
        "decisions",
        "calibration_samples",
        "agreement",
        "unverified",
        "latency",
        "blocks",
        "execution",
        "saturation",
        "shortfalls",
        "thresholds",
        "warnings",
        "skipped",
        "timings",
        "versions",
        "nodes",
        "ranges",
    ]
    assert plain["nodes"][0] == {
        "name": "conv<1>",
        "op_type": "Conv",
        "decision": "static",
        "reason": "convolution with constant weights",
        "weight_elements": 900,
        "macs": 9000,
    }
    assert plain["latency"]["speedup"] == 2.0
    assert plain["agreement"]["accuracy"]["drop_points"] == pytest.approx(100 / 90)
    assert plain["skipped"] == {"a.png": "cut short"}


def test_shortfalls_hold_agreement_and_skipped_files():
    report = full()
    assert report.shortfalls() == ["1 of the data files could not be read"]
    report.thresholds = Thresholds(min_sqnr=40)
    assert report.shortfalls() == [
        "output 'probs': SQNR 31.3 dB (at least 40 wanted)",
        "1 of the data files could not be read",
    ]


def test_summary():
    assert full().summary() == (
        "net.onnx -> net.int8.onnx (static, qdq, onnxruntime)\n"
        "\n"
        "                           float     int8\n"
        "file size               120.3 kB  35.2 kB  0.29x the size\n"
        "accuracy                 97.78 %  96.67 %  -1.11 points, 90 samples\n"
        "time a run, one thread   2.00 ms  1.00 ms  2.00x as fast (noise 1.3 %)\n"
        "\n"
        "agreement with the float model on 90 samples\n"
        "output           SQNR    cosine  max error  range   worst slice          same decision\n"
        "probs         31.3 dB  0.999510     0.0123  0 .. 1  22.5 dB (axis 1, 7)  89 of 90 (95 %: 94.0 % to 99.8 %)\n"
        "ids     99.50 % equal         -          -  int64   -                    -\n"
        "\n"
        "6 nodes: 1 int8, 1 with int8 weights only, 1 passing int8 through, 3 float\n"
        "in int8: 95.0 % of the weights and 90.0 % of the multiply-accumulates\n"
        "  1 float (Gemm): its weights are not constant\n"
        "  2 float (Softmax): is not worth it\n"
        "  1 with int8 weights only (Gather): a table\n"
        "seconds: calibrate 1.2, verify 0.5\n"
        "note: said by the quantizer\n"
        "note: said by verification\n"
        "skipped: a.png: cut short\n"
        "falls short: 1 of the data files could not be read\n"
    )


def test_summary_of_an_empty_report():
    assert Report().summary() == "model\n"


def test_agreement_that_was_not_measured_is_said():
    lines = Report(nodes=[NodeRecord("n", "Conv", "dynamic", "")]).summary().splitlines()
    assert lines[-1] == "not verified: no data was given to run both models on"


@pytest.mark.parametrize(
    ("count", "wanted"), [(0, "0 B"), (999, "999 B"), (35_200, "35.2 kB"), (4_000_000, "4.0 MB"), (2.5e9, "2.50 GB")]
)
def test_size(count, wanted):
    assert words.size(count) == wanted


@pytest.mark.parametrize(
    ("share", "digits", "wanted"),
    [
        (None, 1, "-"),
        (1.0, 1, "100.0 %"),
        (0.9999, 1, "99.9 %"),
        (1e-6, 1, "0.1 %"),
        (0.0, 1, "0.0 %"),
        (0.98333, 2, "98.33 %"),
    ],
)
def test_percent(share, digits, wanted):
    assert words.percent(share, digits) == wanted


def test_decibels_and_times():
    assert [text.decibels(v) for v in (None, 200.0, 31.26)] == ["-", "exact", "31.3 dB"]
    assert [text.milliseconds(v) for v in (0.1234, 12.345, 123.45)] == ["0.123 ms", "12.35 ms", "123 ms"]


def test_a_slower_model_is_said_to_be_slower():
    assert text.speed(Latency(1.0, 2.0, 0.0, 3)) == "2.00x as slow (noise 0.0 %)"


def test_many_reasons_are_cut():
    report = Report(nodes=[NodeRecord(f"n{i}", "Op", "float", f"reason {i}", 100 - i) for i in range(12)])
    lines = text.node_lines(report)
    assert lines[-2:] == ["  1 float (Op): reason 7", "  4 float for other reasons"]


def test_nodes_that_compute_in_float_from_int8_weights_say_why():
    report = full()
    assert text.node_lines(report)[-1] == "  1 with int8 weights only (Gather): a table"
    report.options["mode"] = "weight_only"
    assert text.node_lines(report)[-1] == "  2 float (Softmax): is not worth it"


def test_many_skipped_files_are_cut():
    assert text.skipped_lines({f"{i}.png": "bad" for i in range(12)})[-1] == "skipped: and 2 more files"


VOID = {"meta", "input", "line", "br"}


class Page(HTMLParser):
    """Collects tags, and finds elements that are never closed."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.addresses = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.addresses += [value for key, value in attrs if key in {"src", "href"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def test_the_page_stands_alone_and_is_well_formed():
    source = full().to_html()
    page = Page()
    page.feed(source)
    assert page.open == []
    assert page.addresses == []
    assert not re.search(r"https?://|@import|url\(", source)
    assert page.seen.count("tr") == 3 + 7 + 3 + 3


def test_the_page_escapes_names():
    source = full().to_html()
    assert "conv&lt;1&gt;" in source
    assert "<1>" not in source
    assert "h&lt;2&gt;" in source


def test_the_page_says_the_verdict():
    assert "Falls short" in full().to_html()
    report = full()
    report.skipped = {}
    assert "<b>Verified</b>" in report.to_html()
    assert "Not verified" in Report().to_html()


def test_ranges_are_drawn_from_zero_outward():
    source = full().to_html()
    (x, h) = re.findall(r"class=range x1=([\d.]+) x2=([\d.]+)", source)
    assert x == ("150.0", "290.0")
    assert float(h[0]) + float(h[1]) == 300.0
    assert 150 < float(h[1]) < 290


def test_low_outputs_say_which_blocks_cost_most():
    report = full()
    report.agreement.outputs[0] = replace(report.agreement.outputs[0], sqnr_db=15.0)
    assert any("was not measured" in line for line in text.why_low(report))
    report.blocks = [BlockCost("a", "b", 7, 15.5, 15.0, True), BlockCost("c", "<d>", 7, 18.5, 15.0)]
    name = report.agreement.outputs[0].name
    assert text.why_low(report) == [
        f"below 20 dB: {name!r} (15.0 dB)",
        "  7 nodes from 'a' to 'b': 15.5 dB with them alone in int8, 15.0 dB with everything (left float)",
        "  7 nodes from 'c' to '<d>': 18.5 dB with them alone in int8, 15.0 dB with everything (in int8)",
    ]
    assert "18.5 dB with them alone in int8" in report.summary()
    assert "&lt;d&gt;" in report.to_html()
    assert report.to_dict()["blocks"][0]["sqnr_db"] == 15.5


def test_what_onnxruntime_executes():
    report = full()
    assert text.execution_lines(report) == []
    report.execution = Execution({"QLinearConv": 5, "QGemm": 1}, ["y<1>"], 2, 3)
    assert text.execution_lines(report) == [
        "onnxruntime runs 6 nodes in int8 (5 QLinearConv, 1 QGemm), 2 conversions and 4 others",
        "  not fused, so computed in float from int8 operands: 1 ('y<1>')",
    ]
    assert "not fused" in report.summary()
    assert "y&lt;1&gt;" in report.to_html()
    assert report.to_dict()["execution"]["int8"] == {"QLinearConv": 5, "QGemm": 1}
