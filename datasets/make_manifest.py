"""Make datasets/manifest.json: how many files and bytes each part has, and their SHA-256.

    python datasets/make_manifest.py

The hash of a folder is that of the listing which ``sha256sum`` prints for its files in bytewise order::

    (cd datasets/digits/train && LC_ALL=C sha256sum */*.png | sha256sum)
"""

import hashlib
import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDERS = ("digits/train", "digits/test")
FILES = ("digits/digits.onnx", "photos/astronaut.jpg", "photos/chelsea.png", "photos/coffee.jpg")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def describe(name: str) -> dict[str, int | str]:
    """Count, size in bytes and SHA-256 of one file or folder of datasets/."""
    path = HERE / name
    if path.is_file():
        return {"files": 1, "bytes": path.stat().st_size, "sha256": digest(path)}
    files = sorted(path.glob("*/*.png"))
    listing = "".join(f"{digest(f)}  {f.relative_to(path).as_posix()}\n" for f in files)
    size = sum(f.stat().st_size for f in files)
    return {"files": len(files), "bytes": size, "sha256": hashlib.sha256(listing.encode()).hexdigest()}


if __name__ == "__main__":
    entries = {name: describe(name) for name in (*FOLDERS, *FILES)}
    (HERE / "manifest.json").write_text(json.dumps(entries, indent=2) + "\n")
