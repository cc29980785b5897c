"""Memory that Pillow keeps during a run, and pixels that are read where they lie."""

import numpy as np
import pytest
from pictures import picture_folder
from PIL import Image

import quantkit as qk
from quantkit import _kernels
from quantkit.errors import FormatError, ShapeMismatch
from quantkit.images.blocks import kept_blocks


def test_pillow_has_its_own_setting_back(tmp_path):
    before = Image.core.get_blocks_max()
    with kept_blocks(3):
        assert Image.core.get_blocks_max() == max(before, 6)
        with kept_blocks(1):
            assert Image.core.get_blocks_max() == max(before, 8)
        assert Image.core.get_blocks_max() == max(before, 6)
    assert Image.core.get_blocks_max() == before
    source = picture_folder(tmp_path / "in", 4, broken={1})
    seen = []
    qk.process_images(source, tmp_path / "out", preset="unit", streams=2,
                      progress=lambda _: seen.append(Image.core.get_blocks_max()))  # fmt: skip
    assert seen[0] == max(before, 4)
    with pytest.raises(FormatError):
        qk.process_images(source, tmp_path / "other", preset="unit", on_error="raise")
    assert Image.core.get_blocks_max() == before


@pytest.mark.skipif(not hasattr(Image.Image, "__arrow_c_array__"), reason="this Pillow does not show its pixels")
def test_pixels_through_arrow():
    values = np.random.default_rng(0).integers(0, 256, (7, 5, 3), np.uint8)
    image = Image.fromarray(values)
    pixels = np.asarray(_kernels.ArrowPixels(image.__arrow_c_array__()[1], 7, 5))
    del image  # the capsule keeps the memory
    assert pixels.shape == (7, 5, 4)
    np.testing.assert_array_equal(pixels[..., :3], values)
    assert not pixels.flags.writeable
    with pytest.raises(BufferError, match="read-only"):
        _kernels.copy(values, _kernels.ArrowPixels(Image.fromarray(values).__arrow_c_array__()[1], 7, 5))
    grey = Image.fromarray(values[..., 0])
    for wrong in (grey.__arrow_c_array__()[1], Image.fromarray(values[:6]).__arrow_c_array__()[1]):
        with pytest.raises(ShapeMismatch, match="wanted 5 x 7 pixels of 4 bytes"):
            _kernels.ArrowPixels(wrong, 7, 5)
    with pytest.raises(ValueError, match="PyCapsule_GetPointer"):
        _kernels.ArrowPixels(object(), 7, 5)
