"""Phase diagrams: `python bench/phase.py`. The measured 40 x 40 diagram of MLPs (L = 50, N = 500), and predicted.

For scale: the authors' code takes about 12 s for one point of 100 initializations, 5 hours for this diagram.
"""

from __future__ import annotations

import time

import torch

from sigprop.experiments.apjn_shared import axis
from sigprop.measure.grid import Network
from sigprop.measure.phase import mlp_phase
from sigprop.theory.criticality import predicted_diagram

X, Y = ("sigma_w", axis(0.1, 3.0, 40)), ("sigma_b", axis(0.0, 1.5, 40))


def predicted(activation: str) -> float:
    begin = time.perf_counter()
    predicted_diagram(activation, X, Y)
    return time.perf_counter() - begin


def measured(activation: str, device: str, precision: str, initializations: int) -> float:
    """Seconds per initialization, after one to warm up."""
    network = Network(activation, depth=50, width=500, precision=precision)
    mlp_phase(network, X, Y, initializations=1, device=device)
    begin = time.perf_counter()
    mlp_phase(network, X, Y, initializations=initializations, device=device)
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / initializations


def main() -> None:
    for activation in ("erf", "gelu", "tanh", "selu"):
        print(f"predicted 40 x 40, {activation:5s}: {predicted(activation):.3f} s (target 0.5)")
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for device in devices:
        for activation in ("relu", "erf"):
            for precision in ("float32", "bfloat16"):
                count = 100 if device == "cuda" else 4
                seconds = measured(activation, device, precision, count)
                target = 2 if device == "cuda" else 60
                print(
                    f"measured 40 x 40, L = 50, N = 500, {activation:5s}, {precision:8s}, {device}: {seconds:.3f} s "
                    f"per initialization, {100 * seconds:.1f} s for 100 (target {target})"
                )


if __name__ == "__main__":
    main()
