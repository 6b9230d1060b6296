"""Phase diagrams: `python bench/phase.py`. The measured 40 x 40 diagram of MLPs (L = 50, N = 500), and predicted.

For scale: the authors' code takes about 12 s for one point of 100 initializations, 5 hours for this diagram.
On a shared machine read the processor seconds: over two cores the wall time is half of them where nothing else runs.
"""

from __future__ import annotations

import time

import torch

from sigprop.research.criticality import predicted_diagram
from sigprop.research.phase.diagrams import mlp_phase
from sigprop.research.phase.networks import Network

X = ("sigma_w", torch.linspace(0.1, 3.0, 40).tolist())
Y = ("sigma_b", torch.linspace(0.0, 1.5, 40).tolist())


def predicted(activation: str) -> None:
    begin = time.perf_counter()
    predicted_diagram(activation, X, Y)
    print(f"predicted 40 x 40, {activation:5s}: {time.perf_counter() - begin:.3f} s (target 0.5)")


def measured(activation: str, device: str) -> None:
    """All 100 initializations on a GPU, 4 on a CPU, after one to warm up."""
    network = Network(activation, depth=50, width=500)
    count, target = (100, 2) if device == "cuda" else (4, 60)
    mlp_phase(network, X, Y, initializations=1, device=device)
    wall, processor = time.perf_counter(), time.process_time()
    mlp_phase(network, X, Y, initializations=count, device=device)
    wall, processor = ((clock() - begin) * 100 / count for clock, begin in
                       ((time.perf_counter, wall), (time.process_time, processor)))  # fmt: skip
    print(
        f"measured 40 x 40, L = 50, N = 500, {activation:5s}, {device}: {wall:.2f} s for 100 "
        f"initializations (target {target}), {processor:.1f} processor seconds"
    )


def main() -> None:
    for activation in ("erf", "gelu", "tanh", "selu"):
        predicted(activation)
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        for activation in ("relu", "erf"):
            measured(activation, device)


if __name__ == "__main__":
    main()
