import pickle
import shutil

import numpy as np
import pytest
from pictures import PHOTOS, picture_folder

import quantkit as qk
from quantkit.errors import FormatError, InvalidArgument
from quantkit.images import get_recipe, read_codes


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    source = picture_folder(folder / "in", 23, broken={6, 11})
    qk.process_images(source, folder / "out", preset=get_recipe("imagenet", resize="none", crop=None), shard_size=5)
    qk.process_images(
        source, folder / "npy", preset=get_recipe("imagenet", resize="none", crop=None), shard_size=5, format="npy"
    )
    good = [p for i, p in enumerate(sorted(source.rglob("*.png"))) if i not in {6, 11}]
    return folder, np.stack([read_codes(p, get_recipe("raw")) for p in good])


@pytest.fixture(params=["out", "npy"])
def images(made, request):
    return qk.open_images(made[0] / request.param)


def test_items(images, made):
    pixels = made[1]
    assert len(images) == 21
    assert images.shape == pixels.shape
    recipe = get_recipe("imagenet")
    for i in (0, 4, 5, 20, -1, -21):
        tensor = images[i]
        assert isinstance(tensor, qk.QTensor)
        assert tensor.dtype is qk.quint8
        assert tensor.axis == 0
        np.testing.assert_array_equal(tensor.int_repr(), pixels[i])
        np.testing.assert_array_equal(tensor.scale, recipe.qparams().scale)
        np.testing.assert_array_equal(tensor.zero_point, recipe.qparams().zero_point)
    for i in (21, -22):
        with pytest.raises(IndexError, match=f"index {i} is out of range for 21 images"):
            images[i]
    assert [t.shape for t in images] == [(3, 20, 16)] * 21


def test_items_and_batches_are_views_of_the_file(images):
    with pytest.raises(qk.errors.StorageError, match="read-only"):
        images[0][0, 0, 0] = 1.0
    shard = images._shard(0).images
    assert np.shares_memory(images[2].int_repr(), shard)
    batches = list(images.batches(5))
    assert np.shares_memory(batches[0].int_repr(), shard)
    assert [b.shape[0] for b in batches] == [5, 5, 5, 5, 1]
    # The second shard has 4 images, so the second batch reaches into the third shard.
    assert not np.shares_memory(batches[1].int_repr(), images._shard(1).images)
    assert batches[0].axis == 1


def test_an_image_lies_at_a_multiple_of_64_bytes_where_its_size_is_one(images):
    assert images[3].int_repr().nbytes == 960
    assert [images[i].int_repr().ctypes.data % 64 for i in range(21)] == [0] * 21


def test_slices_lists_and_masks(images, made):
    pixels = made[1]
    for key in (slice(2, 9), slice(None), slice(None, None, -3), slice(5, 5), [3, 1, 4, -1], np.array([0, 20])):
        np.testing.assert_array_equal(images[key].int_repr(), pixels[key])
    assert images[[]].shape == (0, 3, 20, 16)
    mask = np.arange(21) % 2 == 0
    np.testing.assert_array_equal(images[mask].int_repr(), pixels[mask])
    with pytest.raises(IndexError, match="index 21 is out of range"):
        images[[0, 21]]
    with pytest.raises(InvalidArgument, match="wanted indices in one dimension"):
        images[np.zeros((2, 2), int)]
    with pytest.raises(InvalidArgument, match="wanted indices in one dimension, got float64"):
        images[[0.5]]


@pytest.mark.parametrize("size", [1, 4, 7, 21, 50])
def test_batches_hold_every_image_once(images, made, size):
    pixels = made[1]
    np.testing.assert_array_equal(np.concatenate([b.int_repr() for b in images.batches(size)]), pixels)
    kept = sum(len(b) for b in images.batches(size, drop_last=True))
    assert kept == 21 - 21 % size
    for batch, labels in images.batches(size, labels=True):
        assert len(batch) == len(labels)


def test_a_seed_shuffles_the_same_way_everywhere(images, made):
    pixels = made[1]
    order = images.order(3)
    assert order.tolist() == np.random.RandomState(3).permutation(21).tolist()
    batches = list(images.batches(4, seed=3, labels=True))
    np.testing.assert_array_equal(np.concatenate([b.int_repr() for b, _ in batches]), pixels[order])
    np.testing.assert_array_equal(np.concatenate([labels for _, labels in batches]), images.labels[order])
    assert images.order(4).tolist() != order.tolist()


def test_a_batch_of_no_images_is_refused(images):
    with pytest.raises(InvalidArgument, match="at least 1 image, got 0"):
        images.batches(0)


def test_labels_classes_and_manifest(images):
    assert images.classes == ("cat", "dog")
    # 12 cats, of which numbers 6 and 11 are broken.
    assert images.labels.tolist() == [0] * 10 + [1] * 11
    assert len(images.manifest) == 23
    assert [line["path"] for line in images.manifest.with_status("failed")] == ["cat/0006.png", "cat/0011.png"]
    assert images.about(6)["path"] == "cat/0007.png"
    assert images.about(-1)["row"] == images.rows[-1] == 22
    assert images.manifest[-1]["path"] == "dog/0022.png"
    assert [line["row"] for line in images.manifest[2:4]] == [2, 3]


def test_it_pickles_by_its_path(images):
    other = pickle.loads(pickle.dumps(images))
    np.testing.assert_array_equal(other[7].int_repr(), images[7].int_repr())
    assert len(pickle.dumps(images)) < 500


def test_numpy_and_dlpack(images, made):
    pixels = made[1]
    np.testing.assert_array_equal(np.stack([np.asarray(t) for t in images]), pixels)
    np.testing.assert_array_equal(np.from_dlpack(images[3:5]), pixels[3:5])


def test_torch_data_loader(images, made):
    torch = pytest.importorskip("torch", reason="torch is not among the test dependencies")
    from torch.utils.data import DataLoader

    pixels = made[1]
    for workers in (0, 1):
        context = "spawn" if workers else None  # forking a process of several threads is deprecated
        loader = DataLoader(images.as_dataset(), batch_size=4, num_workers=workers, multiprocessing_context=context)
        batches = list(loader)
        assert batches[0][0].dtype is torch.uint8
        np.testing.assert_array_equal(np.concatenate([x.numpy() for x, _ in batches]), pixels)
        np.testing.assert_array_equal(np.concatenate([y.numpy() for _, y in batches]), images.labels)


def test_folders_that_hold_no_shards(tmp_path, made):
    with pytest.raises(FormatError, match=r"holds no shards of images: there is no index\.json"):
        qk.open_images(tmp_path)
    with pytest.raises(FormatError, match=r"holds no shards of images"):
        qk.open_images(tmp_path / "missing")
    copy = tmp_path / "copy"
    shutil.copytree(made[0] / "out", copy)
    text = (copy / "index.json").read_text()
    for old, new in (
        ('"quantkit.images": 1', '"quantkit.images": 2'),
        ('"shape"', '"shapes"'),
        ('"images": 21', '"images": 22'),
        ('"format": "safetensors"', '"format": "zarr"'),
        ("{", "["),
    ):
        (copy / "index.json").write_text(text.replace(old, new, 1))
        with pytest.raises(FormatError, match=r"index\.json: is no index of shards"):
            qk.open_images(copy)


def test_shards_that_do_not_fit_the_index(tmp_path, made):
    for damage in ("swap", "cut", "foreign"):
        copy = tmp_path / damage
        shutil.copytree(made[0] / "out", copy)
        first = copy / "shard-000000.safetensors"
        if damage == "swap":
            shutil.copy(copy / "shard-000001.safetensors", first)
        elif damage == "cut":
            first.write_bytes(first.read_bytes()[:-10])
        else:
            qk.save({"x": np.zeros(3, np.uint8)}, first)
        with pytest.raises(FormatError, match=r"shard-000000\.safetensors: "):
            qk.open_images(copy)[0]


def test_a_shared_scale_stays_one_number(tmp_path):
    qk.process_images(PHOTOS, tmp_path / "out", preset="yolo")
    tensor = qk.open_images(tmp_path / "out")[1]
    assert tensor.axis is None
    assert tensor.scale == np.float32(1 / 255)
    assert tensor.zero_point == 0
