"""Inputs for models that come as files: rendered text and photos for images, tones for audio."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnxruntime as ort
from PIL import Image, ImageDraw, ImageFont

PHOTOS = Path(__file__).resolve().parents[1] / "datasets" / "photos"
TEXT = (
    "quick brown fox jumps lazy dog invoice total amount 2024 price street number date receipt payment order table "
    "figure results section image quality water market open close entry exit station platform"
)
# Height and width where a model leaves them free, by a part of its name.
SIZES = {"det": (320, 320), "rec": (48, 320), "cls": (48, 192)}


def feeds_for(path: Path, count: int) -> list[dict[str, np.ndarray]]:
    """Return `count` seeded feeds for the model at `path`."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    inputs = ort.InferenceSession(str(path), options).get_inputs()
    return [{item.name: _value(path.stem, item, seed) for item in inputs} for seed in range(count)]


def _value(stem: str, item: ort.NodeArg, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if item.type == "tensor(int64)":
        return np.array(16000, np.int64) if not item.shape else np.ones(_fixed(item.shape), np.int64)
    if len(item.shape) == 4 and item.shape[1] == 3:
        part = next((key for key in SIZES if re.search(rf"[_-]{key}[_-]", f"_{stem}_")), "det")
        height, width = (
            given if isinstance(given, int) else free for given, free in zip(item.shape[2:], SIZES[part], strict=True)
        )
        return _picture(height, width, rng, seed)
    if stem.startswith("silero") and item.name == "input":
        samples = item.shape[-1] if isinstance(item.shape[-1], int) else 576
        rows = item.shape[0] if isinstance(item.shape[0], int) else 3 if "sequence" in stem else 1
        tone = 0.3 * np.sin(2 * np.pi * rng.uniform(100, 800) * np.arange(samples) / 16000)
        return (tone + rng.normal(size=(rows, samples)) * 0.05).astype(np.float32)
    if stem.startswith("silero"):
        shape = (2, 1, 128) if item.name == "state" else (1, 1, 128)
        return (rng.normal(size=shape) * 0.05).astype(np.float32)
    return rng.normal(size=_fixed(item.shape)).astype(np.float32)


def _fixed(shape: list[int | str | None]) -> tuple[int, ...]:
    return tuple(length if isinstance(length, int) and length > 0 else 1 for length in shape)


def _picture(height: int, width: int, rng: np.random.Generator, seed: int) -> np.ndarray:
    """Return a photo now and then, otherwise text on paper, as [-1, 1] CHW with a batch axis."""
    photos = sorted(PHOTOS.glob("*.*g"))
    if photos and height > 100 and seed % 4 == 0:
        image = Image.open(photos[seed % len(photos)]).convert("RGB").resize((width, height))
    else:
        image = Image.new("RGB", (width, height), tuple(int(v) for v in rng.integers(170, 255, 3)))
        draw = ImageDraw.Draw(image)
        lines = max(1, height // 40)
        for line in range(lines):
            font = ImageFont.load_default(size=int(height / lines * rng.uniform(0.4, 0.6)))
            text = " ".join(rng.choice(TEXT.split(), size=max(1, width // 70)))
            ink = tuple(int(v) for v in rng.integers(0, 80, 3))
            draw.text((int(rng.integers(2, 8)), line * height // lines + 3), text, fill=ink, font=font)
        if height < 100 and width < 200 and seed % 2:
            image = image.rotate(180)
    values = np.asarray(image, np.float32) / 255 + rng.normal(0, 0.02, (height, width, 1)).astype(np.float32)
    return ((values - 0.5) / 0.5).astype(np.float32).transpose(2, 0, 1)[None]
