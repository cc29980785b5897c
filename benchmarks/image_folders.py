"""Large folders: peak memory from 1,000 to 100,000 files, and how soon the first of 1,000,000 images is out.

    python benchmarks/image_folders.py [--most 100000] [--folders 1000] [--work /tmp]

The files are hard links to eight small photographs, 1,000 in each folder. Every number is that of a fresh process. The
first image is out when the first progress is told: it has been listed, decoded, fitted and lies in its shard.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import machine
from PIL import Image

PHOTOS = Path(__file__).parents[1] / "datasets" / "photos"
IN_FOLDER = 1000
RUN = """
import json, resource, sys, time
import quantkit as qk
from quantkit.images import ImageFolder, Recipe, process_images
what, source, output = sys.argv[1:]
recipe = Recipe(resize="shortest", size=32, crop=32)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
class First(Exception):
    pass
def first(progress):
    raise First
begun = time.perf_counter()
found = {}
try:
    if what == "list":
        images = ImageFolder(source, recipe)
        found["files"] = len(images)
    else:
        result = process_images(source, output, preset=recipe, progress=first if what == "first" else None)
        found |= {"files": result.images, "kept": result.shards_kept, "shards": result.shards}
except First:
    pass
print(json.dumps(found | {"seconds": time.perf_counter() - begun, "MiB": peak()}))
"""


def link(root: Path, folders: int, count: int) -> None:
    """Fill a folder with `count` hard links in so many folders."""
    pictures = []
    for i in range(8):
        photo = Image.open(sorted(PHOTOS.glob("*.jpg"))[i % len(list(PHOTOS.glob("*.jpg")))]).convert("RGB")
        path = root.parent / f"{root.name}-{i}.jpg"
        left = 20 * i
        photo.crop((left, left, left + 128, left + 96)).resize((64, 48)).save(path)
        pictures.append(os.fspath(path))
    root.mkdir()
    for k in range(folders):
        folder = root / f"{k:04d}"
        folder.mkdir()
        for i in range(count // folders):
            number = k * IN_FOLDER + i
            if number % 50_000 == 0:  # a file system allows some 65,000 links to a file
                pictures = [_copy(path, number) for path in pictures]
            os.link(pictures[i % 8], folder / f"{i:04d}.jpg")


def _copy(path: str, number: int) -> str:
    return shutil.copyfile(path, f"{path.removesuffix('.jpg')}-{number}.jpg")


def fresh(what: str, source: Path, output: Path) -> dict[str, float]:
    """Run one thing in a process of its own."""
    done = subprocess.run([sys.executable, "-c", RUN, what, source, output], stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--most", type=int, default=100_000, help="files of the largest run")
    parser.add_argument("--folders", type=int, default=1000, help="of 1,000 files each, for the first image")
    parser.add_argument("--work", default=None, help="where the files are made")
    options = parser.parse_args()
    print(machine())
    work = Path(tempfile.mkdtemp(dir=options.work))
    try:
        print("\n| files | first run, s | peak MiB | run again, all kept, s | peak MiB |\n|---|---|---|---|---|")
        count = IN_FOLDER
        while count <= options.most:
            source, output = work / f"in{count}", work / f"out{count}"
            link(source, count // IN_FOLDER, count)
            once, again = (fresh("process", source, output) for _ in range(2))
            assert once["files"] == again["files"] == count
            assert again["kept"] == again["shards"]
            cells = [f"{run[key]:,.1f}" for run in (once, again) for key in ("seconds", "MiB")]
            print(f"| {count:,} | {' | '.join(cells)} |", flush=True)
            shutil.rmtree(source)
            shutil.rmtree(output)
            count *= 10
        source = work / "many"
        link(source, options.folders, options.folders * IN_FOLDER)
        firsts = sorted(fresh("first", source, work / "out")["seconds"] for _ in range(5))
        listed = fresh("list", source, work / "out")
        print(
            f"\n{listed['files']:,} paths in {options.folders:,} folders: first image out after {firsts[2]:.2f} s "
            f"(of 5: {firsts[0]:.2f} to {firsts[-1]:.2f}); all of them listed in {listed['seconds']:.1f} s, "
            f"peak {listed['MiB']:,.0f} MiB"
        )
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
