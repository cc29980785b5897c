"""What is in a folder of images, before any work: formats, sizes, modes, duplicates, broken files."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from quantkit.cpu import num_threads
from quantkit.errors import FormatError
from quantkit.images.decode import MAX_PIXELS, decode_image, shown
from quantkit.images.image_file import SUFFIX_FORMATS
from quantkit.images.listing import Listing
from quantkit.images.path_table import PathTable
from quantkit.images.pipeline import check_streams
from quantkit.parallel import ordered_map

if TYPE_CHECKING:
    from collections.abc import Callable

    from quantkit.images.source_files import SourceFiles, Stamp


@dataclass(slots=True)
class ScanResult:
    """What `scan_images` found.

    Attributes
    ----------
    images, bytes : int
        Image files, and their size together.
    formats, modes : dict of str to int
        Files by format and by Pillow's mode of the stored pixels.
    sizes : dict of (width, height) to int
        As stored.
    turned : int
        Images that an EXIF orientation turns.
    misnamed : int
        Images of another format than their suffix says.
    classes : dict of str to int
        Image files of each class folder.
    broken : dict of str to str
        Path -> why it cannot be decoded.
    skipped : dict of str to int
        Entries that are no images, by reason.
    duplicates : list of list of str
        Paths with the same bytes.
    """

    images: int = 0
    bytes: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    turned: int = 0
    misnamed: int = 0
    classes: dict[str, int] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    duplicates: list[list[str]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types; sizes as ``"640x480"``, width first."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {
            "schema": 1,
            **{name: dict(value) if isinstance(value, dict) else value for name, value in plain.items()},
            "sizes": {f"{width}x{height}": count for (width, height), count in self.sizes.most_common()},
        }


class _File(NamedTuple):
    path: bytes
    label: int
    size: int
    format: str = ""
    mode: str = ""
    pixels: tuple[int, int] = (0, 0)
    turned: bool = False
    error: str | None = None


def scan_images(
    source: Any,
    *,
    streams: int | None = None,
    max_pixels: int = MAX_PIXELS,
    progress: Callable[[int, int, int], None] | None = None,
) -> ScanResult:
    """Decode every image of a source and count what is there; nothing is written.

    Parameters
    ----------
    source : path-like, URL, or iterable of such
    streams : int, optional
        Threads; one for each usable CPU by default.
    max_pixels : int
        Larger images count as broken.
    progress : callable, optional
        Told files done, broken ones and bytes read.

    Raises
    ------
    FormatError
        When the source cannot be listed.
    """
    check_streams(streams)
    listing, result = Listing(source), ScanResult()
    counts: Counter[int] = Counter()
    paths, by_size = PathTable(), dict[int, list[int]]()

    def look(path: bytes, label: int, listed: Stamp | None) -> _File:
        size = listing.files.stamp(path, listed)[0] or 0
        try:
            found = decode_image(listing.files.open(path), max_pixels=max_pixels)
        except FormatError as e:
            return _File(path, label, size, error=str(e).removeprefix(f"{shown(listing.files.full(path))}: "))
        height, width = found.size
        return _File(path, label, size, found.format, found.mode, (width, height), found.orientation != 1)

    def images() -> Any:
        for entry in listing:
            if entry.skipped is None:
                yield entry
            else:
                result.skipped[entry.skipped] += 1

    workers = streams or num_threads()
    for file in ordered_map(lambda e: look(e.path, e.label, e.stamp), images(), workers=workers, in_flight=8 * workers):
        result.images += 1
        result.bytes += file.size
        counts[file.label] += 1
        if file.size:
            by_size.setdefault(file.size, []).append(len(paths))
        paths.append(file.path)
        if file.error is not None:
            result.broken[os.fsdecode(file.path)] = file.error
        else:
            result.formats[file.format] += 1
            result.modes[file.mode] += 1
            result.sizes[file.pixels] += 1
            result.turned += file.turned
            said = SUFFIX_FORMATS.get(os.path.splitext(os.fsdecode(file.path))[1].lower())
            result.misnamed += said is not None and said != file.format
        if progress is not None:
            progress(result.images, len(result.broken), result.bytes)
    if any(label >= 0 for label in counts):
        result.classes = {name: counts[i] for i, name in enumerate(listing.classes)}
    same_size = [group for group in by_size.values() if len(group) > 1]
    for group in same_size:
        by_hash: dict[bytes, list[str]] = {}
        for i in group:
            digest = _digest(listing.files, paths.relative(i))
            if digest is not None:
                by_hash.setdefault(digest, []).append(os.fsdecode(paths.relative(i)))
        result.duplicates += [same for same in by_hash.values() if len(same) > 1]
    result.duplicates.sort()
    return result


def _digest(files: SourceFiles, path: bytes) -> bytes | None:
    try:
        return hashlib.sha256(files.read(path)).digest()
    except FormatError:
        return None
