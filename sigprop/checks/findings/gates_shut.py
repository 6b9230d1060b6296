"""Gates that let nothing through, or that no longer answer to what they read."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from sigprop.checks.edits import edit
from sigprop.checks.operations import RECURRENT
from sigprop.checks.registry import check, say
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results import Edit, Init
from sigprop.results.report import Datum, Finding

STARTS = {"forget gate": 1.0}


@check("gates_shut", "signal", "sigmoid gates that are shut, or saturated")
def gates_shut(subject: Subject) -> Iterator[Finding]:
    """Mean and slope of every sigmoid, those of torch's own recurrent layers among them."""
    gates = subject.observed.gates
    shut = {name: item.mean for name, item in gates.items() if item.mean < limit("gate_shut")}
    stuck = {name: item.slope for name, item in gates.items() if item.slope < limit("gate_slope") and name not in shut}
    for found, what, cause, quantity in (
        (
            shut,
            "are shut",
            "What they gate neither reaches the output nor gets a gradient worth the name, both "
            "smaller by that factor.",
            "mean",
        ),
        (
            stuck,
            "are saturated",
            "They stay as they are, whatever they read: what sets them gets next to no gradient.",
            "slope over that at zero",
        ),
    ):
        if not found:
            continue
        worst = min(found, key=found.__getitem__)
        told = f": {gates[worst].mean:.2g} on average" if quantity == "mean" else f", at {gates[worst].mean:.3g}"
        yield say(
            "problem",
            f"{_named(worst)} {what}{told}" + (f", as those of {len(found) - 1} more" if len(found) > 1 else ""),
            (
                "Each step keeps that share of the memory: what came before is gone, forward and backward. "
                if "[forget gate]" in worst and quantity == "mean"
                else ""
            )
            + cause,
            "Srivastava et al. 2015; Jozefowicz et al. 2015",
            sites=tuple(found),
            evidence=(Datum(f"{quantity} of {worst}", found[worst], "measured"),),
            edits=tuple(_edits(subject, list(found))),
        )


def _named(name: str) -> str:
    module, _, gate = name.partition("[")
    return f"the {gate.rstrip(']')}s of {module}" if gate else f"the gates of {name}"


def _edits(subject: Subject, names: list[str]) -> Iterator[Edit]:
    """Biases of the gates of a recurrent layer at zero, those of forget gates at one."""
    modules = dict(subject.model.named_modules())
    for name in names:
        path, _, kind = name.rstrip("]").partition("[")
        module = modules.get(path)
        order = RECURRENT.get(type(module), ())
        if not isinstance(module, nn.RNNBase) or kind not in order or not module.bias:
            continue
        size, place = module.hidden_size, order.index(kind)
        inits = {}
        for leaf, start in (("bias_ih_l0", STARTS.get(kind, 0.0)), ("bias_hh_l0", 0.0)):
            full = f"{path}.{leaf}" if path else leaf
            own = getattr(module, leaf).detach().double()
            if abs(float(own[place * size : (place + 1) * size].mean())) < 1.0:
                continue
            means = [float(part.mean()) for part in own.split(size)]
            parts = [
                Init("constant", value=start if index == place else mean if abs(mean) > 1.0 else 0.0)
                for index, mean in enumerate(means)
            ]
            inits[full] = Init("blocks", axis=0, sizes=(size,) * len(order), parts=tuple(parts))
        if inits:
            places = f"torch's order: {', '.join(order)}"
            what = f"set the biases of the {kind}s of {path} to {STARTS.get(kind, 0.0):g} ({places})"
            yield edit(what, inits, f"The bias of the {kind}s of {path} saturates them.")
