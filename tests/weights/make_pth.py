"""Makes the small .pth files in data/ with torch; the tests read them without it."""

from pathlib import Path

import torch

HERE = Path(__file__).parent / "data"


def values(*shape, dtype=torch.float32):
    """Whole numbers that every dtype here holds exactly."""
    count = 1
    for n in shape:
        count *= n
    return (torch.arange(count) % 61 - 30).to(dtype).reshape(shape)


def state_dict():
    embedding = values(12, 8)
    base = values(10, 6)
    return {
        "embedding.weight": embedding,
        "head.weight": embedding,
        "half": values(4, 6, dtype=torch.float16),
        "brain": values(4, 6, dtype=torch.bfloat16),
        "double": values(4, 6, dtype=torch.float64),
        "transposed": base.t(),
        "slice": base[2:8:2, 1:5],
        "expanded": values(1, 6).expand(5, 6),
        "ids": values(7, dtype=torch.int64),
        "small_ints": values(3, 3, dtype=torch.int8),
        "mask": values(5) > -28,
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 4),
    }


def main():
    HERE.mkdir(exist_ok=True)
    torch.save(state_dict(), HERE / "state_dict.pth")
    torch.save(state_dict(), HERE / "legacy.pth", _use_new_zipfile_serialization=False)
    torch.save(state_dict(), HERE / "protocol4.pth", pickle_protocol=4)
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4))
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.copy_(values(*tensor.shape, dtype=tensor.dtype))
    parameter = torch.nn.Parameter(values(4, 6))
    checkpoint = {
        "model": model.state_dict(),
        "step": 7,
        "rate": 0.5,
        "name": "ü",
        "done": False,
        "nothing": None,
        "history": [1, 2.5, (3, 4)],
        "moments": [values(3, 4), {0: values(2, 2)}],
        "parameter": parameter,
        "float8": values(4, 6).to(torch.float8_e4m3fn),
        "uint16": values(3).abs().to(torch.uint16),
    }
    torch.save(checkpoint, HERE / "checkpoint.pth")
    torch.save(model, HERE / "whole_module.pth")


if __name__ == "__main__":
    main()
