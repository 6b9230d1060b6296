"""A 96-layer, width-64 Post-LN decoder on the shipped text: Xavier beside DeepScale.

    python examples/deep_decoder.py --device cuda

The model is not changed: DeepScale's scales are folded into the weights, and AdamW's groups come from the plan. Writes
the two loss curves and the command to `docs/data/deep_decoder.json` and a figure beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from torch import nn

from sigprop.models import build, encode, sample_text
from sigprop.recipes import plan

CONTEXT = 64


def batches(steps: int, size: int, seed: int, device: str):
    """Random passages of the text, the same for every recipe."""
    stream = encode(sample_text())
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(stream) - CONTEXT - 1, (size,), generator=generator).tolist()
        yield torch.stack([stream[start : start + CONTEXT + 1] for start in starts]).to(device)


def train(recipe: str, options: argparse.Namespace) -> list[float]:
    """Losses of every step; training ends early when the loss is no longer a number."""
    torch.manual_seed(options.seed)
    model = build(
        "transformer", kind="decoder", norm_placement="post", depth=options.depth, width=options.width, heads=4,
        context=CONTEXT, activation="relu",
    )  # fmt: skip
    made = plan(model, recipe, batch=encode(sample_text())[None, :CONTEXT])
    made.apply_(model, torch.Generator().manual_seed(options.seed))
    model.to(options.device)
    optimizer = torch.optim.AdamW(made.param_groups(model, lr=options.lr, weight_decay=0.01))
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / options.warmup))
    losses = []
    for step, ids in enumerate(batches(options.steps, options.batch, options.seed, options.device)):
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        warmup.step()
        losses.append(loss.item())
        if step % 20 == 0 or step == options.steps - 1:
            print(f"{recipe:10s} step {step:4d}  loss {losses[-1]:.4f}", flush=True)
        if not torch.isfinite(loss):
            break
    return losses


def figure(curves: dict[str, list[float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    for name, losses in curves.items():
        pyplot.plot(losses, label=name)
    pyplot.xlabel("step")
    pyplot.ylabel("loss (nats per byte)")
    pyplot.legend()
    pyplot.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--depth", type=int, default=96)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recipes", default="xavier,deepscale")
    parser.add_argument("--out", type=Path, default=Path("docs/data/deep_decoder.json"))
    options = parser.parse_args()
    curves = {name: train(name, options) for name in options.recipes.split(",")}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
    found = {"command": "python examples/deep_decoder.py " + " ".join(sys.argv[1:]), "settings": settings}
    rounded = {name: [round(value, 4) for value in losses] for name, losses in curves.items()}
    options.out.write_text(json.dumps(found | {"losses": rounded}, indent=1) + "\n")
    figure(curves, options.out.with_suffix(".png"))
    for name, losses in curves.items():
        print(f"{name}: first {losses[0]:.3f}, last twenty {sum(losses[-20:]) / len(losses[-20:]):.3f}")


if __name__ == "__main__":
    main()
