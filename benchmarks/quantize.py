"""quantize and dequantize against onnxruntime, torch, NumPy and a copy that moves as many bytes.

    python benchmarks/quantize.py [--sizes 4096,65536,...] [--rounds 15] [--svg docs/quantize.svg]

Every side writes into memory that it was given before, except torch, whose quantize and dequantize always allocate.
`quantkit bench --peers` measures the same contestants in short.
"""

from __future__ import annotations

import argparse

import numpy as np
import onnxruntime as ort
from harness import machine, pin, race
from picture import bars

import quantkit as qk
from quantkit.jobs.bench import PEERS, affine_contestants


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", default="4096,16384,65536,262144,1048576,4194304,16777216")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--svg", help="also draw the ratios to the best peer into this file")
    options = parser.parse_args()
    pin(1)
    print(f"{machine()}; quantkit uses {qk.cpu.active_isa()}; onnxruntime {ort.__version__}, numpy {np.__version__}")
    print("\n| job | elements | quantkit us | GB/s | best peer | best peer / quantkit | copy / quantkit | A/A |")
    print("|---|---|---|---|---|---|---|---|")
    drawn = []
    for op in ("quantize", "dequantize"):
        for n in map(int, options.sizes.split(",")):
            medians = race(affine_contestants(op, n, peers=True), rounds=options.rounds)
            ours = medians["quantkit"]
            peers = {name: medians[name] for name in PEERS if name in medians}
            best = min(peers, key=peers.__getitem__)
            print(
                f"| {op} | {n:,} | {ours * 1e6:,.2f} | {5 * n / ours / 1e9:.1f} | {best} {peers[best] * 1e6:,.1f} us "
                f"| {peers[best] / ours:.2f} | {medians['copy'] / ours:.2f} | {medians['A/A']:.2f} |",
                flush=True,
            )
            size = f"{n >> 10} Ki" if n < 1 << 20 else f"{n >> 20} Mi"
            drawn.append((f"{op} {size}", peers[best] / ours, best))
    if options.svg:
        title = "quantize and dequantize, float32 and uint8, one core"
        note = f"times as fast as the best of onnxruntime {ort.__version__}, torch and NumPy; medians, same process"
        with open(options.svg, "w") as file:
            file.write(bars(title, note, drawn))


if __name__ == "__main__":
    main()
