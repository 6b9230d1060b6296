"""`sigprop demo`: the main job on an embedded default."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sigprop.cli.console import show
from sigprop.cli.options import writable
from sigprop.grid import Grid, factor, number

if TYPE_CHECKING:
    from sigprop.results import Profile
    from sigprop.results.profile import SiteRow

DEPTH = 48
REAL_DEPTH, CONTEXT, SEEDS = 24, 64, 4
SHOWN = (1, 2, 4, 8, 16, 24, 32, 40, 48)


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("out"),
) -> None:
    """Predict 48-layer Transformers under two initializations; then predict, measure and plan a real model."""
    from sigprop.results.drawing import profile_figure

    path = writable(out / "demo.png")
    profiles = demo_profiles()
    show(f"{DEPTH}-layer Transformer encoder, width 256, 128 tokens, dropout 0.1", "")
    for name, profile in profiles.items():
        show(_table(name, profile), "")
    show(_verdict(profiles), "")
    profile_figure(profiles, path, f"{DEPTH}-layer Transformer at initialization, predicted")
    show(f"figure: {path}", "")
    show(f"a real {REAL_DEPTH}-layer Post-LN decoder, width 128:")
    show(f"predicted / measured over {SEEDS} initializations", "", _real_model())


def demo_profiles() -> dict[str, Profile]:
    from sigprop.blueprints import predict
    from sigprop.blueprints.laws import scaled_transformer

    return {
        f"{placement.capitalize()}-LN, {scheme}": predict(
            scaled_transformer(scaling, DEPTH, dropout=0.1, norm_placement=placement)
        )
        for placement in ("post", "pre")
        for scheme, scaling in {"Xavier": "vanilla", "DeepScale": "deepscale"}.items()
    }


def _stack(profile: Profile) -> list[SiteRow]:
    from sigprop.results.blocks import streams

    return next(iter(streams(profile.sites).values()))


def _real_model() -> Grid:
    """A decoder as torch runs it, under two plans: theory beside measurement."""
    from torch import Tensor, nn

    from sigprop.measure import measure
    from sigprop.models import build, encode, sample_text
    from sigprop.recipes import plan as plan_recipe
    from sigprop.results.blocks import gradient_growth
    from sigprop.trace import predict

    ids = encode(sample_text())[None, : CONTEXT + 1]
    inputs, targets = ids[:, :-1], ids[:, 1:].flatten()

    def model() -> nn.Module:
        shape = {"depth": REAL_DEPTH, "width": 128, "heads": 4, "context": CONTEXT}
        return build("transformer", kind="decoder", norm_placement="post", **shape)

    def loss(logits: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets)

    rows = []
    for recipe in ("xavier", "unit"):
        plan = plan_recipe(model(), recipe, batch=inputs)
        found = (
            predict(plan.apply_(model()), inputs, loss=loss),
            measure(None, inputs, loss, build=lambda plan=plan: plan.apply_(model()), seeds=SEEDS),
        )
        ends = " / ".join(f"{_stack(profile)[-1].token_correlation:.3f}" for profile in found)
        rows.append([recipe, ends, " / ".join(factor(gradient_growth(_stack(profile))) for profile in found)])
    return Grid(["plan", "token corr. at the end", "gradient, first / last"], rows)


def _verdict(profiles: dict[str, Profile]) -> Grid:
    from sigprop.results.blocks import gradient_growth, growth

    stacks = {name: _stack(profile) for name, profile in profiles.items()}
    rows = [[name, factor(growth(stack)), factor(gradient_growth(stack))] for name, stack in stacks.items()]
    return Grid(["stack", "variance, last / first", "gradient, first / last"], rows, title="end to end")


def _table(name: str, profile: Profile) -> Grid:
    rows = []
    for index in SHOWN:
        row = _stack(profile)[index - 1]
        values = (row.variance, row.token_correlation, row.grad_variance, row.grad_token_correlation)
        rows.append([str(index), *map(number, values), row.status])
    headings = ["block", "variance", "token corr.", "grad variance", "grad corr.", "status"]
    return Grid(headings, rows, title=name, names=())
