"""Folders of JPEG files to tensors: quantkit against a tuned Pillow thread pool, and decoding and resizing alone.

    python benchmarks/images.py [--files 96] [--rounds 7] [--cores 1,2]

The files are crops of the photographs in `datasets/photos`, and of scikit-image where it is installed. Every side does
the same with them (shorter side 256, centre crop 224, bilinear) and writes uint8 of shape (n, 3, 224, 224):

- quantkit: `process_images`, with shards, index and manifest.
- pillow pool: threads that decode, resize, crop and write into one mapped .npy file.
- decode + resize: the two calls of Pillow alone, nothing kept: what no program on top of Pillow can beat.
- processes: decode + resize in as many processes as cores, started before the clock.
- quantkit processes: `process_images` with one stream in each of them, on its part of the files.
- torchvision: its DataLoader, where torchvision is installed; nothing is written.

Outputs lie in memory (/dev/shm), so that no disk is measured.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from harness import machine, race
from PIL import Image

import quantkit as qk

PHOTOS = Path(__file__).parents[1] / "datasets" / "photos"
SIZES = {"500x375": (500, 375), "1600x1200": (1600, 1200)}


def photographs() -> list[Image.Image]:
    """Every real photograph at hand."""
    found = [Image.open(path).convert("RGB") for path in sorted(PHOTOS.iterdir())]
    try:
        from skimage import data
    except ImportError:
        return found
    return found + [Image.fromarray(getattr(data, name)()) for name in ("rocket", "retina", "hubble_deep_field")]


def make_folder(root: Path, size: tuple[int, int], count: int) -> list[str]:
    """Write `count` JPEG files of `size`, each of four different crops, at the quality of 90."""
    photos, choose = photographs(), np.random.RandomState(0)
    width, height = size[0] // 2, size[1] - size[1] // 2
    paths = []
    for i in range(count):
        picture = Image.new("RGB", size)
        for corner in range(4):
            photo = photos[choose.randint(len(photos))]
            share = 0.6 + 0.4 * choose.rand()
            w, h = int(photo.width * share), int(photo.height * share)
            left, top = choose.randint(photo.width - w + 1), choose.randint(photo.height - h + 1)
            part = photo.crop((left, top, left + w, top + h)).resize((width, height), Image.Resampling.BICUBIC)
            picture.paste(part, (corner % 2 * width, corner // 2 * (height - size[1] % 2)))
        path = root / f"{i:05d}.jpg"
        picture.save(path, quality=90)
        paths.append(str(path))
    return paths


def decode_and_resize(paths: list[str]) -> None:
    """Decode and resize, nothing else."""
    for path in paths:
        with Image.open(path) as image:
            image.load()
            short = min(image.size)
            image.resize((256 * image.width // short, 256 * image.height // short), Image.Resampling.BILINEAR)


def pillow_row(path: str, row: np.ndarray) -> None:
    """One image into its row of the output."""
    with Image.open(path) as image:
        picture = image.convert("RGB")
    short = min(picture.size)
    width, height = 256 * picture.width // short, 256 * picture.height // short
    left, top = (width - 224) // 2, (height - 224) // 2
    picture = picture.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + 224, top + 224))
    row[...] = np.asarray(picture).transpose(2, 0, 1)


def make_shards(folder: Path, out: Path, streams: int = 1) -> None:
    """All of ours."""
    qk.process_images(folder, out, streams=streams, resume=False)


def parts_of(folder: Path, paths: list[str], count: int) -> list[Path]:
    """Return so many folders with a part of the files each."""
    parts = [folder.with_name(f"{folder.name}-{k}-of-{count}") for k in range(count)]
    for part in parts:
        part.mkdir()
    for i, path in enumerate(paths):
        os.link(path, parts[i % count] / Path(path).name)
    return parts


def contestants(paths: list[str], folder: Path, out: Path, cores: int, processes, pool):
    """The rivals on one folder."""
    halves = [paths[k::cores] for k in range(cores)]

    def pillow() -> None:
        rows = np.lib.format.open_memmap(out / "x.npy", "w+", np.uint8, (len(paths), 3, 224, 224))
        list(pool.map(pillow_row, paths, rows))

    found = {
        "quantkit": lambda: make_shards(folder, out / "shards", cores),
        "pillow pool": pillow,
        "decode + resize": lambda: list(pool.map(decode_and_resize, halves)),
    }
    if processes is not None:
        found["processes"] = lambda: list(processes.map(decode_and_resize, halves))
        parts = parts_of(folder, paths, cores)
        outs = [out / f"shards-{part.name}" for part in parts]
        found["quantkit processes"] = lambda: list(processes.map(make_shards, parts, outs))
    try:
        from torch.utils.data import DataLoader
        from torchvision import transforms
        from torchvision.datasets.folder import default_loader
    except ImportError:
        return found
    steps = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), transforms.PILToTensor()])

    class Files:
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, i: int):
            return steps(default_loader(paths[i]))

    loader = DataLoader(Files(), batch_size=32, num_workers=cores, persistent_workers=True)
    found["torchvision"] = lambda: [None for _ in loader]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--files", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cores", default="1,2")
    options = parser.parse_args()
    usable = sorted(os.sched_getaffinity(0))
    import PIL

    print(f"{machine()}; Pillow {PIL.__version__}")
    names = ("decode + resize", "pillow pool", "torchvision", "processes", "quantkit processes")
    print(f"\n| files | cores | quantkit images/s | {' | '.join(names)} | A/A |")
    print("|---|---|---|---|---|---|---|---|---|")
    work = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        for files, size in SIZES.items():
            folder = work / files
            folder.mkdir()
            count = options.files if files == "500x375" else max(16, options.files // 4)
            paths = make_folder(folder, size, count)
            for cores in map(int, options.cores.split(",")):
                os.sched_setaffinity(0, set(usable[:cores]))
                with ThreadPoolExecutor(cores) as pool, ProcessPoolExecutor(cores) as processes:
                    lanes = contestants(paths, folder, work, cores, processes if cores > 1 else None, pool)
                    medians = race(lanes, rounds=options.rounds, target=0)
                ours = medians["quantkit"]
                cells = [f"{medians[name] / ours:.2f}" if name in medians else "-" for name in names]
                print(
                    f"| {files} | {cores} | {count / ours:,.0f} | {' | '.join(cells)} | {medians['A/A']:.2f} |",
                    flush=True,
                )
                os.sched_setaffinity(0, set(usable))
    finally:
        shutil.rmtree(work)
    print(f"\n{', '.join(names)}: their time over ours, above 1 quantkit is faster.")


if __name__ == "__main__":
    main()
