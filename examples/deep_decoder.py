"""A 96-layer, width-64 Post-LN decoder on the shipped text: Xavier beside DeepScale.

    python examples/deep_decoder.py --device cuda

The model is not changed: DeepScale's scales are folded into the weights, and AdamW's groups come from the plan. Writes
the loss curves and the command to `docs/data/deep_decoder.json` and a figure to `docs/figures/deep_decoder.png`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from torch import nn

from sigprop.models import build, encode, sample_text
from sigprop.plans.recipes import plan

CONTEXT = 64
WINDOW = 10


def batches(steps: int, size: int, seed: int, device: str):
    """Random passages of the text, the same for every recipe."""
    stream = encode(sample_text())
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(stream) - CONTEXT - 1, (size,), generator=generator).tolist()
        yield torch.stack([stream[start : start + CONTEXT + 1] for start in starts]).to(device)


def train(recipe: str, seed: int, options: argparse.Namespace) -> list[float]:
    """Losses of every step; training ends early when the loss is no longer a number."""
    torch.manual_seed(seed)
    model = build(
        "transformer", kind="decoder", norm_placement="post", depth=options.depth, width=options.width, heads=4,
        context=CONTEXT, activation="relu",
    )  # fmt: skip
    made = plan(model, recipe, batch=encode(sample_text())[None, :CONTEXT])
    made.apply_(model, torch.Generator().manual_seed(seed))
    model.to(options.device)
    optimizer = torch.optim.AdamW(made.param_groups(model, lr=options.lr, weight_decay=0.01))
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / options.warmup))
    losses = []
    for step, ids in enumerate(batches(options.steps, options.batch, seed, options.device)):
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        warmup.step()
        losses.append(loss.item())
        if step % 20 == 0 or step == options.steps - 1:
            print(f"{recipe:10s} seed {seed} step {step:4d}  loss {losses[-1]:.4f}", flush=True)
        if not torch.isfinite(loss):
            break
    return losses


def averaged(losses: list[float]) -> list[float]:
    """Means over windows of steps."""
    windows = [losses[start : start + WINDOW] for start in range(0, len(losses), WINDOW)]
    return [round(sum(window) / len(window), 4) for window in windows]


def figure(curves: dict[str, list[float]], path: Path) -> None:
    """One line for each run, one colour for each recipe."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    recipes = list(dict.fromkeys(name.split()[0] for name in curves))
    drawing, axis = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    for name, losses in curves.items():
        steps = [WINDOW * (place + 1) for place in range(len(losses))]
        axis.plot(steps, losses, color=f"C{recipes.index(name.split()[0])}", linewidth=1)
    axis.set(xlabel="step", ylabel="loss (nats per byte)")
    axis.legend([Line2D([], [], color=f"C{number}") for number in range(len(recipes))], recipes, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--depth", type=int, default=96)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--recipes", default="xavier,deepscale")
    parser.add_argument("--out", type=Path, default=Path("docs/data/deep_decoder.json"))
    parser.add_argument("--figure", type=Path, default=Path("docs/figures/deep_decoder.png"))
    options = parser.parse_args()
    runs = [(name, int(seed)) for name in options.recipes.split(",") for seed in options.seeds.split(",")]
    curves = {f"{name} {seed}": averaged(train(name, seed, options)) for name, seed in runs}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    settings = {key: value for key, value in vars(options).items() if not isinstance(value, Path)}
    found = {"command": "python examples/deep_decoder.py " + " ".join(sys.argv[1:]), "settings": settings}
    options.out.write_text(json.dumps(found | {"window": WINDOW, "losses": curves}, indent=1) + "\n")
    figure(curves, options.figure)
    for name, losses in curves.items():
        print(f"{name}: first {losses[0]:.3f}, last {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
