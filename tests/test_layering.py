"""The house: lower rooms never import higher ones, and neighbours in one row never import each other."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "quantkit"  # the sources: an installed package has no .pyx files

# Rows from the ground up; a room may import from the rows below its own and from itself.
ROWS = [
    {"errors", "qparams", "ranges", "sqnr", "text", "_version"},
    {"_kernels", "cpu", "cuda"},
    {"storage"},
    {"streams"},
    {"ops"},
    {"tensor"},
    {"files", "parallel", "cluster"},
    {"graph"},
    {"images", "weights", "engine", "backend"},
    {"models"},
    {"jobs"},
    {"cli"},
]
# The parts of the quantizer likewise: stages in the order in which they build on each other.
PARTS = [
    "inputs",
    "progress",
    "runtime",
    "data",
    "calibration",
    "passes",
    "planning",
    "forms",
    "verification",
    "report",
    "refinement",
    "quantizer",
]
ROW_OF = {room: i for i, row in enumerate(ROWS) for room in row}
# Pairs within one row that the house allows: a part that is built on its neighbour.
SAME_ROW = {("qparams", "errors"), ("ranges", "errors"), ("cpu", "_kernels")}
TOP = {"__init__", "__main__"}  # the public face may import from every row


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def module_name(path: Path) -> str:
    parts = ["quantkit", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def imported_rooms(path: Path, source: str):
    """Every quantkit room that `source` imports, at module level or inside functions."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            names = [f"{base}.{alias.name}" for alias in node.names] if base == "quantkit" else [base]
        else:
            continue
        for name in names:
            if name == "quantkit":
                yield "__init__"
            elif name.startswith("quantkit."):
                yield room_of(name)


def imported_parts(source: str):
    """Every part of `models` that `source` imports, at module level or inside functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("quantkit.models."):
            yield node.module.split(".")[2]


def python_lines(path: Path) -> str:
    """The import statements of a Cython file, which ast cannot parse whole."""
    if path.suffix == ".py":
        return path.read_text()
    lines = (line.strip() for line in path.read_text().splitlines())
    return "\n".join(line for line in lines if line.startswith(("from quantkit", "import quantkit")))


SOURCES = sorted(p for p in ROOT.rglob("*") if p.suffix in {".py", ".pyx", ".pxi"})


def violations(path: Path, source: str):
    room = room_of(module_name(path))
    if room in TOP:
        return []
    bad = []
    for other in imported_rooms(path, source):
        if other == room or (room, other) in SAME_ROW:
            continue
        if other in TOP or ROW_OF[other] >= ROW_OF[room]:
            bad.append(f"{room} imports {other}")
    return bad


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_downward(path):
    assert violations(path, python_lines(path)) == []


@pytest.mark.parametrize("path", sorted((ROOT / "models").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_parts_of_the_quantizer_build_on_earlier_ones(path):
    part = path.relative_to(ROOT / "models").parts[0].removesuffix(".py")
    allowed = {part, *PARTS[: PARTS.index(part)]} if part != "__init__" else set()
    assert set(imported_parts(path.read_text())) <= allowed


def test_every_room_has_a_row():
    rooms = {room_of(module_name(p)) for p in SOURCES} - TOP
    assert rooms <= set(ROW_OF)


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("storage/heap.py", "from quantkit.ops import matmul"),
        ("storage/heap.py", "from ..ops import matmul"),
        ("images/walk.py", "import quantkit.weights"),
        ("ops/matmul.py", "from quantkit import tensor"),
        ("ops/matmul.py", "import quantkit"),
        ("errors.py", "from quantkit.qparams import QParams"),
    ],
)
def test_the_check_itself_sees_upward_arrows(room, line):
    assert len(violations(ROOT / room, line)) == 1
