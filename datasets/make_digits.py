"""Make datasets/digits: the PNG files, and the float model trained on them.

    pip install numpy pillow onnx onnxruntime scikit-learn torch
    python datasets/make_digits.py            # both
    python datasets/make_digits.py --images   # only the PNG files (no torch)

Everything is seeded and runs on one thread, so that one machine gives the same file twice. Other builds of torch may
differ in the last bits of the weights; the accuracy is checked here and stored in the model.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from sklearn.datasets import load_digits

HERE = Path(__file__).resolve().parent / "digits"
SEED = 0
EPOCHS = 60
WANTED_ACCURACY = 0.985
# How a file becomes the model's input: an 8x8 grey image, its pixels divided by 255.
RECIPE = {
    "version": 1,
    "name": "digits",
    "resize": "squash",
    "size": [8, 8],
    "crop": None,
    "crop_rounding": "half-even",
    "interpolation": "bilinear",
    "upscale": True,
    "color": "L",
    "divide": 255.0,
    "mean": [0.0],
    "std": [1.0],
    "pad": [0],
    "background": [255, 255, 255],
}
# (output channels, stride) of the 3x3 convolutions; the third and fifth close a residual block.
LAYERS = [(32, 1), (64, 1), (64, 1), (128, 2), (128, 1)]


def write_images() -> None:
    """Write train/<class>/NNNN.png and test/<class>/NNNN.png; the last quarter of each class is for the test.

    A contiguous part is a harder test than every fourth image, because neighbours in the table are often by one
    hand. NNNN is the row of scikit-learn's table. Its values 0..16 count the inked pixels of a 4x4 block;
    rint(v * 255 / 16) spreads them over 0..255, so that ink is bright.
    """
    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    for part in ("train", "test"):
        shutil.rmtree(HERE / part, ignore_errors=True)
    for label in range(10):
        rows = np.flatnonzero(digits.target == label)
        for i, row in enumerate(rows):
            folder = HERE / ("test" if 4 * i >= 3 * len(rows) else "train") / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[row]).save(folder / f"{row:04d}.png", optimize=True)


def load(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Read a part back from its files: float32 images [N, 1, 8, 8] and int64 labels [N]."""
    files = sorted((HERE / part).glob("*/*.png"))
    images = np.stack([np.asarray(Image.open(f)) for f in files])[:, None]
    return images.astype(np.float32) / np.float32(255), np.array([int(f.parent.name) for f in files])


def make_network():
    """Five 3x3 convolutions with BatchNorm, one residual sum, a 2x2 max pool and one fully connected layer."""
    from torch import nn

    class Digits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            inputs = [1] + [channels for channels, _ in LAYERS]
            self.convs = nn.ModuleList(
                nn.Conv2d(i, o, 3, stride, 1, bias=False) for i, (o, stride) in zip(inputs, LAYERS, strict=False)
            )
            self.norms = nn.ModuleList(nn.BatchNorm2d(o) for o, _ in LAYERS)
            self.pool = nn.MaxPool2d(2)
            self.drop = nn.Dropout(0.3)
            self.head = nn.Linear(LAYERS[-1][0] * 4, 10)

        def forward(self, x):
            for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
                y = norm(conv(x))
                x = (y + x if i in (2, 4) else y).relu()
            return self.head(self.drop(self.pool(x).flatten(1)))

    return Digits()


def train(images: np.ndarray, labels: np.ndarray):
    """Train on small random shifts, turns and scalings of `images`; returns the network in eval mode."""
    import torch
    from torch.nn import functional as F

    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    net = make_network()
    steps = EPOCHS * (len(x) // 64)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=5e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for _ in range(EPOCHS):
        order = torch.randperm(len(x))
        for batch in order[: len(x) // 64 * 64].split(64):
            n = len(batch)
            angle = (torch.rand(n) - 0.5) * 0.5
            scale = 1 + (torch.rand(n, 2) - 0.5) * 0.3
            shift = (torch.rand(n, 2) - 0.5) * 0.35
            cos, sin = angle.cos(), angle.sin()
            affine = torch.stack(
                [cos * scale[:, 0], -sin, shift[:, 0], sin, cos * scale[:, 1], shift[:, 1]], dim=1
            ).reshape(n, 2, 3)
            grid = F.affine_grid(affine, [n, 1, 8, 8], align_corners=False)
            warped = F.grid_sample(x[batch], grid, align_corners=False)
            loss = F.cross_entropy(net(warped), y[batch], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return net.eval()


def to_onnx(net) -> onnx.ModelProto:
    """Write the network node by node, so that BatchNormalization stays in the graph."""
    state = {name: value.numpy() for name, value in net.state_dict().items()}
    weights: list[TensorProto] = []
    nodes: list[onnx.NodeProto] = []

    def weight(name: str, array: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(op: str, inputs: list[str], output: str, **attributes) -> str:
        nodes.append(helper.make_node(op, inputs, [output], name=f"{op}_{output}", **attributes))
        return output

    x = "image"
    for i, (_, stride) in enumerate(LAYERS):
        w = weight(f"conv{i}.weight", state[f"convs.{i}.weight"])
        y = node("Conv", [x, w], f"conv{i}", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[stride, stride])
        names = ("weight", "bias", "running_mean", "running_var")
        norm = [weight(f"norm{i}.{n}", state[f"norms.{i}.{n}"]) for n in names]
        y = node("BatchNormalization", [y, *norm], f"norm{i}", epsilon=1e-5)
        if i in (2, 4):
            y = node("Add", [y, x], f"sum{i}")
        x = node("Relu", [y], f"relu{i}")
    x = node("MaxPool", [x], "pool", kernel_shape=[2, 2], strides=[2, 2])
    x = node("Flatten", [x], "features", axis=1)
    head = [weight("head.weight", state["head.weight"]), weight("head.bias", state["head.bias"])]
    node("Gemm", [x, *head], "logits", transB=1)
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 10])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="make_digits.py")
    model.ir_version = 8
    return model


def accuracy(model: onnx.ModelProto, part: str) -> float:
    """Share of the images of a part that the model labels rightly, in onnxruntime."""
    images, labels = load(part)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"image": images})
    return float((logits.argmax(1) == labels).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", action="store_true", help="only the PNG files")
    only_images = parser.parse_args().images
    write_images()
    if only_images:
        return
    model = to_onnx(train(*load("train")))
    measured = {part: accuracy(model, part) for part in ("train", "test")}
    helper.set_model_props(
        model,
        {
            "quantkit.recipe": json.dumps(RECIPE),
            "test_accuracy": f"{measured['test']:.4f}",
            "train_accuracy": f"{measured['train']:.4f}",
            "classes": "0 1 2 3 4 5 6 7 8 9",
        },
    )
    onnx.checker.check_model(model, full_check=True)
    print(f"accuracy: train {measured['train']:.4f}, test {measured['test']:.4f}")
    if measured["test"] < WANTED_ACCURACY:
        raise SystemExit(f"wanted a test accuracy of {WANTED_ACCURACY}, nothing written")
    (HERE / "digits.onnx").write_bytes(model.SerializeToString())


if __name__ == "__main__":
    main()
