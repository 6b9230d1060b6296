"""Schemes that say one thing of every matrix, whatever its place: by its fans, or one size for all."""

from __future__ import annotations

import math

from sigprop.errors import require
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.rows import init_all, kept_row, recipe, with_inits
from sigprop.results import Init
from sigprop.structure import Parameter, Structure

PER = ("matrix", "part", "head")


@recipe(
    "own",
    paper="the model's author",
    applies_to="any model",
    effect="nothing is initialized: every parameter keeps the values that the model has",
    solves=True,
)
def own(structure: Structure) -> Plan:
    """`w` as it is: what a width or depth rule stands on when no recipe is asked for."""
    return Plan([kept_row(item) for item in structure])


@recipe(
    "fixed",
    paper="Devlin et al. 2019 (BERT)",
    applies_to="any model",
    effect="every matrix and embedding with std 0.02, whatever its width",
)
def fixed(structure: Structure, std: float = 0.02) -> Plan:
    """`W ~ N(0, std^2)`."""
    require(std > 0, "std", std, "a positive number")
    return init_all(structure, lambda item, role, size: Init("normal", std=std), embedding=std)


def lecun_rule(item: Parameter, role: str, size: int) -> Init:
    """`Var W = 1 / fan_in`."""
    return Init("normal", std=1.0 / math.sqrt(item.fan_in))


@recipe(
    "lecun",
    paper="LeCun et al. 1998",
    applies_to="any model",
    effect="variance 1/fan_in: E[x^2] kept through linear maps",
)
def lecun(structure: Structure, embedding: float = 0.02) -> Plan:
    """`Var W = 1 / fan_in`."""
    return init_all(structure, lecun_rule, embedding)


def xavier_std(item: Parameter, role: str, per: str = "matrix", gain: float = 1.0) -> float:
    """`gain * sqrt(2 / (fan_in + fan_out))`; `part` takes the outputs of query, key or value alone, `head` of one head.

    A fused matrix is split evenly, as wide as its values.
    """
    fan_out = item.fan_out
    if per == "part" and item.parts:
        fan_out = sum(part.size for part in item.parts if part.role == "value")
    if per == "head" and item.head_width and role in ("query_key", "value"):
        fan_out = item.head_width
    return gain * math.sqrt(2.0 / (item.fan_in + fan_out))


@recipe(
    "xavier",
    paper="Glorot & Bengio 2010",
    applies_to="any model",
    effect="variance 2/(fan_in + fan_out), per matrix, per fused part or per head",
)
def xavier(structure: Structure, per: str = "matrix", embedding: float = 0.02, kind: str = "normal") -> Plan:
    """`Var W = 2 / (fan_in + fan_out)`.

    On values, `per="matrix"` gives a branch gain `C1 = 1/(1-p)`, `per="head"` the 2.2 of dslm's analysis, and a fused
    query-key-value matrix taken whole 0.56 (FORMULAS 3).
    """
    require(per in PER, "per", per, " or ".join(PER))
    return init_all(structure, lambda item, role, size: Init(kind, std=xavier_std(item, role, per)), embedding)


@recipe(
    "kaiming",
    paper="He et al. 2015",
    applies_to="any model; derived for ReLU",
    effect="variance 2/fan_in (or 2/fan_out): E[x^2] kept through ReLU layers",
)
def kaiming(structure: Structure, mode: str = "fan_in", embedding: float = 0.02) -> Plan:
    """`Var W = 2 / fan`."""
    require(mode in ("fan_in", "fan_out"), "mode", mode, "fan_in or fan_out")
    return init_all(
        structure, lambda item, role, size: Init("normal", std=math.sqrt(2.0 / getattr(item, mode))), embedding
    )


@recipe(
    "orthogonal",
    paper="Saxe et al. 2014",
    applies_to="any model",
    effect="orthogonal matrices, all singular values equal to the gain",
)
def orthogonal(structure: Structure, gain: float = 1.0, embedding: float = 0.02) -> Plan:
    """`W W^T` or `W^T W` is `gain^2` times the identity: entries of mean square `gain^2 / max(fan_in, fan_out)`."""
    require(gain > 0, "gain", gain, "a positive number")

    def rule(item: Parameter, role: str, size: int) -> Init:
        rows = item.shape[0] if not item.parts else size
        columns = math.prod(item.shape) // item.shape[0] if not item.parts else item.fan_in
        return Init("orthogonal", std=gain / math.sqrt(max(rows, columns)))

    return init_all(structure, rule, embedding)


@recipe(
    "pytorch",
    paper="torch.nn.Linear.reset_parameters",
    applies_to="any model",
    effect="uniform with variance 1/(3 fan_in); biases likewise; embeddings N(0, 1)",
)
def pytorch(structure: Structure) -> Plan:
    """`W, b ~ U(-1/sqrt(fan_in), 1/sqrt(fan_in))`, embeddings `N(0, 1)`, whatever the model's author chose."""

    def rule(item: Parameter, role: str, size: int) -> Init:
        return Init("uniform", std=1.0 / math.sqrt(3.0 * item.fan_in))

    plan = init_all(structure, rule, embedding=1.0)
    weights = {item.name.rpartition(".")[0]: item for item in structure if item.is_matrix}
    owners = {row.name: weights.get(row.name.rpartition(".")[0]) for row in plan if row.role == "bias"}
    return with_inits(plan, {name: rule(owner, "bias", 0) for name, owner in owners.items() if owner is not None})


@recipe(
    "spectral",
    paper="Yang, Simon & Bernstein 2023, eq. (1) and section 2",
    applies_to="any model",
    effect="spectral norm sqrt(fan_out/fan_in) for every matrix; with Muon's unit scale, for its updates too",
)
def spectral(structure: Structure, embedding: float = 1.0) -> Plan:
    """Features keep their size: a Gaussian matrix of std `s` has spectral norm `s (sqrt(fan_in) + sqrt(fan_out))`, so
    that `s = sqrt(fan_out / fan_in) / (sqrt(fan_in) + sqrt(fan_out))`; tables have rows of entries near one."""

    def rule(item: Parameter, role: str, size: int) -> Init:
        ends = math.sqrt(item.fan_in) + math.sqrt(item.fan_out)
        return Init("normal", std=math.sqrt(item.fan_out / item.fan_in) / ends)

    return init_all(structure, rule, embedding=embedding)
