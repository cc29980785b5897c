"""Make opencv_golden.json: SHA-256 of what OpenCV's INTER_LINEAR makes of seeded noise.

    pip install numpy opencv-python-headless
    python tests/images/make_opencv_golden.py

OpenCV 4.12 and 5.0 gave the same file.
"""

import hashlib
import json
from pathlib import Path

import cv2
import numpy as np

SIZES = [
    *[(480, 640, 3, 480, 640), (512, 512, 3, 640, 640), (400, 600, 3, 427, 640), (300, 451, 3, 426, 640)],
    *[(375, 500, 3, 480, 640), (600, 800, 3, 300, 400), (601, 801, 3, 300, 400), (1200, 1600, 3, 480, 640)],
    *[(1, 1, 3, 5, 7), (1, 9, 1, 4, 3), (9, 1, 3, 3, 4), (2, 2, 1, 1, 1), (64, 64, 1, 32, 32), (64, 64, 3, 32, 31)],
    *[(33, 47, 1, 101, 13), (17, 5, 3, 5, 17), (255, 3, 3, 2, 300), (7, 300, 1, 299, 6), (128, 96, 3, 48, 64)],
]


def noise(height: int, width: int, channels: int) -> np.ndarray:
    return np.random.RandomState(height * 10_007 + width).randint(0, 256, (height, width, channels)).astype(np.uint8)


if __name__ == "__main__":
    golden = []
    for h, w, c, height, width in SIZES:
        resized = cv2.resize(noise(h, w, c), (width, height), interpolation=cv2.INTER_LINEAR)
        golden.append({"case": [h, w, c, height, width], "sha256": hashlib.sha256(resized.tobytes()).hexdigest()})
    path = Path(__file__).with_name("opencv_golden.json")
    path.write_text("[\n" + ",\n".join(f"  {json.dumps(g)}" for g in golden) + "\n]\n")
