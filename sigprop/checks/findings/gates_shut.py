"""Gates that let nothing through."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor, nn

from sigprop.checks.edits import edit
from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results import Edit, Init
from sigprop.results.report import Datum, Finding


@check("gates_shut", "signal", "sigmoid gates so far closed that nothing passes")
def gates_shut(subject: Subject) -> Iterator[Finding]:
    """Mean of every sigmoid, and forget gates of LSTMs by their biases (torch keeps the rest of an LSTM to itself)."""
    shut = {name: mean for name, mean in subject.observed.gates.items() if mean < limit("gate_shut")}
    if shut:
        worst = min(shut, key=shut.__getitem__)
        yield _finding(
            f"the gates of {worst} are shut: {shut[worst]:.2g} on average"
            + (f", as those of {len(shut) - 1} more" if len(shut) > 1 else ""),
            "What they gate neither reaches the output nor gets a gradient worth the name, both smaller by that "
            "factor.", shut[worst], subject, tuple(shut),
        )  # fmt: skip
    for name, mean, change in _forget_gates(subject):
        if mean < limit("gate_shut"):
            yield _finding(
                f"the forget gates of {name} are shut: {mean:.2g} on average",
                "Each step keeps that share of the memory: what came before is gone, forward and backward. "
                "Jozefowicz et al. (2015) start them open, with a bias of 1.", mean, subject, (name,), (change,),
            )  # fmt: skip


def _finding(
    title: str, cause: str, mean: float, subject: Subject, sites: tuple[str, ...], edits: tuple[Edit, ...] = ()
) -> Finding:
    return Finding(
        "gates_shut",
        "signal",
        "problem",
        title,
        cause,
        "Srivastava et al. 2015; Jozefowicz et al. 2015",
        sites=sites,
        depths=subject.depths_of(sites),
        evidence=(Datum("mean of the gates", mean, "measured"),),
        edits=edits,
    )


def _forget_gates(subject: Subject) -> Iterator[tuple[str, float, Edit]]:
    """By module and layer: the gate at zero input, and the change of its bias."""
    if subject.measured is None:
        return
    for name, module in subject.model.named_modules():
        if not isinstance(module, nn.LSTM) or not module.bias:
            continue
        size = module.hidden_size
        for layer in range(module.num_layers):
            parts = [getattr(module, f"bias_{kind}_l{layer}") for kind in ("ih", "hh")]
            total: Tensor = sum(part.detach().double()[size : 2 * size] for part in parts)  # type: ignore[assignment]
            path = f"{name}.bias_ih_l{layer}" if name else f"bias_ih_l{layer}"
            parts = tuple(Init("constant", value=1.0 if place == 1 else 0.0) for place in range(4))
            init = Init("blocks", axis=0, sizes=(size,) * 4, parts=parts)
            yield (
                f"{name}.{layer}",
                1 / (1 + math.exp(-float(total.mean()))),
                edit(f"set the biases of the forget gates of {name} to 1", {path: init}),
            )
