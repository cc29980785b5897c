"""Weight files in, quantized weight files out: one tensor a worker, a piece of it in memory."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from quantkit import _kernels
from quantkit.cpu import num_threads
from quantkit.errors import FormatError, InvalidArgument, OutputError
from quantkit.files import ResumableFile, TensorLayout, check_output, open_tensors, plan_tensors, resumable_write
from quantkit.parallel import ordered_map
from quantkit.weights import passes
from quantkit.weights.batch import find_batch, quantize_batch
from quantkit.weights.result import TensorRow, WeightsBatch, WeightsResult
from quantkit.weights.rules import Decision, Options, check_dtype, decide, is_dropped, unmatched
from quantkit.weights.source import Source, SourceTensor, open_source
from quantkit.weights.stored import StoredWeight, describe, encode

if TYPE_CHECKING:
    pass

Progress = Callable[[str, int, int | None], None]
PathLike = str | os.PathLike[str]
_OTHER_FORMATS = (".npz", ".npy", ".pth", ".pt", ".onnx", ".json")
_PIECE = 1 << 20  # bytes read at a time when the file is checked


@dataclass(frozen=True)
class Plan:
    """What becomes of each tensor of a source, and where it lies in the result."""

    decisions: dict[str, Decision]
    stored: dict[str, StoredWeight]
    layout: TensorLayout


def make_plan(source: Source, options: Options, left_float: dict[str, str]) -> Plan:
    """Place the result of quantizing a source, except for the tensors whose values turned out not to serve."""
    decisions = {
        t.name: Decision(None, left_float[t.name]) if t.name in left_float else decide(t, options)
        for t in source.tensors
    }
    taken = {t.name for t in source.tensors} | set(source.ties)
    specs: dict[str, tuple[Any, Sequence[int]]] = {}
    stored: dict[str, StoredWeight] = {}
    for t in source.tensors:
        grid = decisions[t.name].grid
        if grid is None:
            specs[t.name] = (t.dtype, t.shape)
            continue
        weight = stored[t.name] = describe(t.name, options.dtype, t.dtype, grid, taken)
        specs[t.name] = (options.dtype.codes, t.shape)
        specs[weight.scale] = ("F32", grid.shape)
        specs[weight.zero_point] = (options.dtype.codes, grid.shape)
    return Plan(decisions, stored, plan_tensors(specs, encode(stored.values(), source.ties, source.metadata)))


class _PlanChanges(Exception):
    """The values of a tensor do not serve, so it must stay float."""


class _Writer:
    """Carries a plan out, into a file that an earlier run may have begun."""

    def __init__(self, file: ResumableFile, plan: Plan, options: Options) -> None:
        self._file, self._plan, self._options = file, plan, options

    def tensor(self, tensor: SourceTensor) -> dict[str, Any]:
        """Write one tensor and return its record: a ``row``, and the ``pieces`` written, [offset, bytes, CRC-32]."""
        decision = self._plan.decisions[tensor.name]
        row = TensorRow(tensor.name, tensor.shape, tensor.dtype, "float", decision.reason, bytes_before=tensor.nbytes)
        if decision.grid is None:
            if tensor.dtype not in ("F16", "BF16", "F32", "F64"):
                row = replace(row, decision="copied")
            crc = passes.copy(tensor, self._write_to(tensor.name))
            pieces = [[self._plan.layout.offset(tensor.name), tensor.nbytes, crc]]
        else:
            grid, weight = decision.grid, self._plan.stored[tensor.name]
            names = [tensor.name, weight.scale, weight.zero_point]
            try:
                coded = passes.quantize(tensor, grid, self._options, [self._write_to(n) for n in names])
            except passes.Unfit:
                raise _PlanChanges from None
            layout = self._plan.layout
            pieces = [[layout.offset(n), layout.nbytes(n), crc] for n, crc in zip(names, coded.crcs, strict=True)]
            sqnr = coded.sqnr_db
            row = replace(
                row,
                decision="quantized",
                axis=grid.axis,
                block=grid.block,
                max_error=coded.max_error,
                sqnr_db=None if sqnr is None else max(sqnr, -999.0),
            )
        self._file.write_back(*pieces[0][:2])
        row = replace(row, bytes_after=sum(size for _, size, _ in pieces))
        return {"row": _row_to_json(row), "pieces": pieces}

    def _write_to(self, name: str) -> passes.Write:
        offset = self._plan.layout.offset(name)
        return lambda at, data: self._file.write_at(offset + at, data)

    def is_whole(self, tensor: SourceTensor, record: Any) -> bool:
        """Whether what is recorded of a tensor lies where this plan wants it, byte for byte."""
        names, weight = [tensor.name], self._plan.stored.get(tensor.name)
        if weight is not None:
            names += [weight.scale, weight.zero_point]
        layout = self._plan.layout
        try:
            placed = [(offset, size) for offset, size, _ in record["pieces"]]
            wanted = [(layout.offset(n), layout.nbytes(n)) for n in names]
            _row_from_json(record["row"])
        except (TypeError, KeyError, ValueError):
            return False
        return placed == wanted and all(self._crc(offset, size) == crc for offset, size, crc in record["pieces"])

    def _crc(self, offset: int, size: int) -> int:
        """Read bytes back and return their CRC-32; -1 when the file is shorter."""
        crc, room = 0, memoryview(bytearray(min(size, _PIECE)))
        for at in range(0, size, _PIECE):
            part = room[: min(_PIECE, size - at)]
            if self._file.read_at(offset + at, part) != len(part):
                return -1
            crc = _kernels.crc32(part, crc)
        return crc


def _row_to_json(row: TensorRow) -> list[Any]:
    return list(vars(row).values())


def _row_from_json(values: Any) -> TensorRow:
    row = TensorRow(*values)
    return replace(row, shape=tuple(row.shape))


def quantize_file(
    source_path: PathLike, output: PathLike, options: Options, streams: int, resume: bool, progress: Progress | None
) -> WeightsResult:
    """Quantize one source; `quantize_weights` has the words."""
    real = check_output(output)
    if real.lower().endswith(_OTHER_FORMATS):
        raise InvalidArgument(f"the output {os.fspath(output)} will be a safetensors file: name it .safetensors")
    source = open_source(source_path)
    if real in {os.path.realpath(path) for path in source.files}:
        raise InvalidArgument(f"the output {os.fspath(output)} is a file of the source")
    names = [t.name for t in source.tensors] + list(source.ties)
    notes = source.notes + unmatched(names, options)
    _drop(source, options)
    for tensor in source.tensors:
        check_dtype(source.path, tensor)
    identity = source.identity()
    key = hashlib.sha256(json.dumps(["quantkit.weights 1", identity, options.to_json()]).encode()).hexdigest()
    with resumable_write(output, key, resume=resume) as file:
        left_float = {str(piece[1:]): str(reason) for piece, reason in file.finished.items() if piece.startswith("!")}
        while True:
            plan = make_plan(source, options, left_float)
            _check_space(output, plan.layout.size, file)
            file.resize(plan.layout.size)
            file.write_at(0, plan.layout.head)
            try:
                records, resumed = _carry_out(file, plan, source, options, streams, progress)
                break
            except _PlanChanges:
                # Its bytes change the place of what comes after. All such tensors are found now, so this happens once.
                found = _unfit(source, plan, streams)
                if not found:
                    raise FormatError(f"{source.path}: was changed while it was read") from None
                left_float |= found
                for name, reason in left_float.items():
                    file.record(f"!{name}", reason)
        _verify(file, plan, source, records, options, streams)
        if source.identity() != identity:
            raise FormatError(f"{source.path}: was changed while it was read")
    rows = [_row_from_json(records[t.name]["row"]) for t in source.tensors]
    dtypes = {t.name: t for t in source.tensors}
    for name, target in source.ties.items():
        rows.append(TensorRow(name, dtypes[target].shape, dtypes[target].dtype, "tied", f"to {target}"))
    nonfinite = tuple(name for name in dtypes if name in left_float)
    return WeightsResult(source.path, os.fspath(output), tuple(rows), nonfinite, resumed, tuple(notes))


def _drop(source: Source, options: Options) -> None:
    """Leave out what `drop` names; a tensor tied to a dropped one takes its place."""
    gone = {t.name: t for t in source.tensors if is_dropped(t.name, options)}
    source.tensors = [t for t in source.tensors if t.name not in gone]
    heirs: dict[str, str] = {}
    for name, target in list(source.ties.items()):
        if is_dropped(name, options):
            del source.ties[name]
        elif target in gone and target not in heirs:
            heirs[target] = name
            del source.ties[name]
            source.tensors.append(replace(gone[target], name=name))
        elif target in gone:
            source.ties[name] = heirs[target]


def _check_space(output: PathLike, size: int, file: ResumableFile) -> None:
    """Fail now rather than when the disk is full."""
    folder = os.path.dirname(os.path.realpath(output))
    there = os.stat(file.temporary).st_blocks * 512
    usage = shutil.disk_usage(folder)
    free = usage.free + there
    if size > free and usage.total:  # some file systems do not tell
        raise OutputError(f"cannot write {os.fspath(output)}: it will have {size} bytes, and {folder} has {free} free")


def _carry_out(
    file: ResumableFile, plan: Plan, source: Source, options: Options, streams: int, progress: Progress | None
) -> tuple[dict[str, Any], int]:
    """Write every tensor that was not finished before; return all records, and how many were."""
    writer = _Writer(file, plan, options)

    def work(tensor: SourceTensor) -> tuple[bool, dict[str, Any]]:
        record = file.finished.get(f"={tensor.name}")
        if record is not None and writer.is_whole(tensor, record):
            return True, record
        return False, writer.tensor(tensor)

    # The largest first would balance better, but the order of the file is the order of the disk.
    place = {name: i for i, name in enumerate(plan.layout)}
    tensors = sorted(source.tensors, key=lambda t: place[t.name])
    resumed = 0
    records: dict[str, Any] = {}
    if progress is not None:
        progress("quantize", 0, len(tensors))
    for tensor, (before, record) in zip(tensors, ordered_map(work, tensors, workers=streams), strict=True):
        if not before:
            file.record(f"={tensor.name}", record)
            file.finished[f"={tensor.name}"] = record
        records[tensor.name] = record
        resumed += before
        if progress is not None:
            progress("quantize", len(records), len(tensors))
    return records, resumed


def _unfit(source: Source, plan: Plan, streams: int) -> dict[str, str]:
    """Return every tensor whose values do not serve, and why."""
    tensors = [t for t in source.tensors if plan.decisions[t.name].grid is not None]
    problems = ordered_map(passes.find_problem, tensors, workers=streams)
    return {t.name: reason for t, reason in zip(tensors, problems, strict=True) if reason is not None}


def _verify(
    file: ResumableFile, plan: Plan, source: Source, records: dict[str, Any], options: Options, streams: int
) -> None:
    """Read the finished file back: its header as any reader would, and every byte against what was written."""
    try:
        header = list(open_tensors(file.temporary))
    except FormatError as e:
        raise OutputError(f"the written file is damaged: {e}") from None
    writer = _Writer(file, plan, options)
    whole = ordered_map(lambda t: writer.is_whole(t, records[t.name]), source.tensors, workers=streams)
    for tensor, good in zip(source.tensors, whole, strict=True):
        if not good:
            raise OutputError(f"the written file is damaged: tensor {tensor.name!r} does not read back as written")
    if header != list(plan.layout):
        raise OutputError("the written file is damaged: its header does not read back as written")


def quantize_weights(
    source: PathLike | Sequence[PathLike],
    output: PathLike,
    *,
    dtype: Any = "qint8",
    granularity: str = "channel",
    axis: int | None = None,
    block: int = 64,
    symmetric: bool | None = None,
    include: Sequence[str] | str = (),
    exclude: Sequence[str] | str = (),
    drop: Sequence[str] | str = (),
    min_elements: int = 1024,
    streams: int | None = None,
    resume: bool = True,
    progress: Progress | None = None,
) -> WeightsResult | WeightsBatch:
    """Quantize the weights of a file to 8 bits, whatever its size, into one safetensors file.

    Floating-point tensors of two dimensions or more and at least `min_elements` elements are quantized. All others
    are stored as they are: smaller ones and those of one dimension, integers, tensors that would not become smaller,
    and tensors that hold NaN or infinite values (reported, because no code could stand for them).

    Parameters
    ----------
    source : path or sequence of paths
        ``.safetensors``, the ``.safetensors.index.json`` of several, ``.npz``, ``.pth`` (its pickle is interpreted,
        never executed), ``.onnx``. A folder, a glob or a sequence of files is a batch.
    output : path
        A ``.safetensors`` file; for a batch a folder, made if it is missing, that gets one such file for each source.
    dtype : qint8 (default) or quint8
    granularity : {"channel", "tensor", "block"}
        What has a scale of its own: each index of `axis`, the whole tensor, or each run of `block` consecutive
        elements of a row. A tensor whose rows make no whole blocks is quantized per channel.
    axis : int, optional
        The output channels. By default what the graph of an .onnx model says, and 0 otherwise.
    block : {32, 64, 128}
    symmetric : bool, optional
        Zero point 0 (qint8) or 128 (quint8). By default True for qint8 and False for quint8.
    include, exclude, drop : str or sequence of str
        Patterns of names, as of a shell. With `include`, only matching tensors are quantized; those of `exclude` are
        not; those of `drop` are left out of the result.
    min_elements : int
    streams : int, optional
        How many tensors are worked on at a time; by default one for each usable CPU. The result does not depend on it.
    resume : bool, default True
        Go on where a run of the same source, options and output was killed. False: begin again.
    progress : callable, optional
        Called with ``(stage, tensors done, tensors in all)``.

    Returns
    -------
    WeightsResult
        With a row for each tensor; for a batch a WeightsBatch of them.

    Raises
    ------
    FormatError
        When the source is missing, damaged, or asks for more than tensors and plain containers; names file and place.
    InvalidArgument, InvalidDType
        For an option out of range.
    OutputError
        When the output cannot be written; nothing is left under its name.
    """
    options = Options.check(dtype, granularity, axis, block, symmetric, include, exclude, drop, min_elements)
    count = num_threads() if streams is None else streams
    if not isinstance(count, int) or count < 1:
        raise InvalidArgument(f"streams must be an integer >= 1, got {streams!r}")
    files = find_batch(source)
    if files is None:
        assert isinstance(source, str | os.PathLike)
        return quantize_file(source, output, options, count, resume, progress)

    def one(path: str, into: str) -> WeightsResult:
        def tell(_: str, done: int, total: int | None) -> None:
            if progress is not None:
                progress(os.path.basename(path), done, total)

        return quantize_file(path, into, options, count, resume, tell)

    return quantize_batch(files, output, one)
