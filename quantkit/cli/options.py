"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quantkit.errors import InvalidArgument
from quantkit.models.verification.agreement import Thresholds

if TYPE_CHECKING:
    from quantkit.images import Recipe

_DEFAULT = Thresholds()


class _Path(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":  # would be the current folder
            self.fail("wanted a path, got an empty text", param, ctx)
        return super().convert(value, param, ctx)


class _Place(_Path):
    """A path, or a URL, which stays text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if isinstance(value, str) and "://" in value else super().convert(value, param, ctx)


class Real(click.FloatRange):
    """A finite number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"wanted a finite number, got {number}", param, ctx)
        return number


PATH = _Path(path_type=Path)
PLACE = _Place(path_type=Path)


def thresholds(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say when agreement falls short."""
    for name, value, kind, text in (
        (
            "--min-argmax",
            _DEFAULT.min_argmax,
            Real(0, 1),
            "share of argmax decisions that must stay, where classes are not known",
        ),
        (
            "--max-drop",
            _DEFAULT.max_accuracy_drop,
            Real(0, 100),
            "accuracy points that may be lost, where classes are known",
        ),
        ("--min-slice-sqnr", _DEFAULT.min_slice_sqnr, Real(), "least SQNR in dB of the worst channel of each output"),
        ("--min-sqnr", _DEFAULT.min_sqnr, Real(), "least SQNR in dB of each output"),
    ):
        option = click.option(name, type=kind, default=value, show_default=True, help=f"For exit code 0: {text}.")
        command = option(command)
    return command


def make_thresholds(options: dict[str, Any]) -> Thresholds:
    """Take the options of `thresholds` out of a command's options."""
    return Thresholds(
        min_sqnr=options.pop("min_sqnr"),
        min_slice_sqnr=options.pop("min_slice_sqnr"),
        max_accuracy_drop=options.pop("max_drop"),
        min_argmax=options.pop("min_argmax"),
    )


preset = click.option(
    "--preset",
    metavar="NAME",
    help="How images are prepared: a preset's name or a recipe's .json file. Default: what the model's metadata says.",
)


def _set(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """FIELD=VALUE to a dict; values are JSON, or plain text where they are not."""
    changes: dict[str, Any] = {}
    for item in values:
        field, equals, value = item.partition("=")
        if not equals or not field:
            raise click.BadParameter(f"wanted FIELD=VALUE, got {item!r}")
        try:
            changes[field] = json.loads(value)
        except ValueError:
            changes[field] = value
    return changes


def _change(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """An option that stands for a field of the recipe: kept aside until `make_recipe` takes it with the others."""
    if value is not None:
        context.meta.setdefault(_STEPS, {})[parameter.name] = value
    return value


_STEPS = "quantkit.steps"
_DECODING = (
    click.option(
        "--frames",
        metavar="FRAMES",
        expose_value=False,
        callback=_change,
        help="Which frames or pages of a file are images: first, all, a number spread over the file, or every:k.",
    ),
    click.option(
        "--draft",
        type=Real(1),
        metavar="[RATIO]",
        is_flag=False,
        flag_value=2.0,
        expose_value=False,
        callback=_change,
        help="Decode JPEG files 2, 4 or 8 times smaller while both sides stay RATIO (2) times what is needed.",
    ),
    click.option(
        "--tolerant/--strict",
        default=None,
        expose_value=False,
        callback=_change,
        help="What a file that is cut short is: an image that is black in part, or a failure (the default).",
    ),
)


def recipe(default: str | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --preset, --set and the steps of decoding, which come as `preset` and `changes`."""
    more = ", or an .onnx file that carries its own" if default else ". Default: what the model's metadata says"

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(_DECODING):
            command = option(command)
        command = click.option(
            "--set",
            "changes",
            multiple=True,
            metavar="FIELD=VALUE",
            callback=_set,
            help="Change a field of the recipe, such as size=232 or crop=[224,224]. May be repeated.",
        )(command)
        return click.option(
            "--preset",
            metavar="NAME",
            default=default,
            show_default=default is not None,
            help=f"How images are prepared: a preset's name, a recipe's .json file{more}.",
        )(command)

    return add


def given_steps() -> dict[str, Any]:
    """Return the fields of the recipe that the running command was given by options of their own."""
    context = click.get_current_context(silent=True)
    steps: dict[str, Any] = {} if context is None else context.meta.get(_STEPS, {})
    return steps


def make_recipe(preset: str, changes: dict[str, Any]) -> Recipe:
    """Return the recipe of `recipe`'s options: by name, from a file, or from a model that carries its own.

    Raises
    ------
    InvalidArgument
        For an unknown name or field, and a model without a recipe.
    """
    from quantkit.images import get_recipe

    changes = {**changes, **given_steps()}
    if not preset.lower().endswith(".onnx"):
        return get_recipe(preset, **changes)
    from quantkit.models.data.image_data import RECIPE_KEY, recipe_of

    found = recipe_of(preset)
    if found is None:
        raise InvalidArgument(f"{preset} has no {RECIPE_KEY} in its metadata")
    return get_recipe(found, **changes)


streams = click.option(
    "--streams", type=click.IntRange(1, 256), metavar="N", help="Threads that decode. Default: all usable CPUs."
)
samples = click.option("--samples", type=click.IntRange(min=1), help="Use at most this many samples. Default: all.")
threads = click.option(
    "--threads",
    type=click.IntRange(0, 256),
    default=0,
    show_default="all CPUs",
    help="Threads for running the models. Latency is always measured on one.",
)
class_axis = click.option(
    "--class-axis",
    type=int,
    help="Axis of the first output whose largest value is the decision. Default: found by Softmax or by labels.",
)
report = click.option("--report", type=PATH, metavar="FILE", help="Also write the full report: .html or .json.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout instead of text.")
