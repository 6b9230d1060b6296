"""Which dimensions of a model are widths, and the role of every parameter, from two builds of it.

A dimension is width-like when it differs between the model and its base. With `fan_in` and `fan_out` the
ratios of the two builds, the role follows: hidden (both grow), readout (only fan-in grows), embedding (only
fan-out grows), vector (one dimension), fixed (nothing grows). No trace and no base-shape file. Between two builds
of one width every ratio is one and roles are read off the structure: Muon still has to know its hidden matrices.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from torch import nn

from sigprop.errors import InputError, UnknownNameError, require
from sigprop.plans.matrix_optimizers import matrix_shape
from sigprop.plans.multipliers import Matrix
from sigprop.results.parameters import WIDTH_CLASSES
from sigprop.sites import modules_of, parameter_names, plain_name, unwrap
from sigprop.structure import Structure

ROLES = ("embedding", "hidden", "readout", "vector", "fixed")
EMBEDDED = re.compile(r"pos|embed|token|query|latent|prompt", re.IGNORECASE)


@dataclass(frozen=True)
class Dimensions:
    """One parameter beside its base: ratios of fan-in, fan-out and number of layers, and its role.

    `rows` and `columns` are those of (model, base) as stored; `aliases` all names of a tied parameter.
    """

    name: str
    shape: tuple[int, ...]
    base_shape: tuple[int, ...]
    role: str
    fan_in: float
    fan_out: float
    depth: float
    rows: tuple[int, int]
    columns: tuple[int, int]
    aliases: tuple[str, ...]
    base_name: str

    @property
    def matrix(self) -> Matrix:
        """As the optimizers see it."""
        return Matrix(self.fan_in, self.fan_out, self.rows, self.columns)


def compare(
    model: nn.Module,
    base: nn.Module,
    roles: Mapping[str, str] | None = None,
    structure: Structure | None = None,
) -> list[Dimensions]:
    """Every parameter of the model with its role; `roles` overrides by name or by pattern (`h.*.bias`).

    Roles follow from which axes grow and from the kind of module; where that is unclear (experts, routers, matrices of
    unknown modules) from how the traced model uses them, if its `structure` is given.
    """
    model, base = unwrap(model), unwrap(base)
    shapes, base_shapes = _shapes(model), _shapes(base)
    partners = _partners(shapes, base_shapes)
    depths = _depth_ratios(shapes, base_shapes)
    owners = modules_of(model)
    known = {key for name in shapes for key in (name, pattern(name))}
    for key, role in (roles or {}).items():
        require(role in ROLES, f"role of {key}", role, f"one of {', '.join(ROLES)}")
        if key not in known:
            raise UnknownNameError("parameter in roles", key, known)
    found, unclear = [], []
    for name, aliases in parameter_names(model).items():
        asked = (roles or {}).get(name) or (roles or {}).get(pattern(name))
        shape, base_shape = shapes[name], base_shapes[partners[name]]
        item = _dimensions(_embedding_first(aliases, owners), shape, base_shape, owners, asked)
        traced = None if structure is None else structure.parameters.get(name)
        if item is None and traced is not None:
            item = _dimensions(name, shape, base_shape, owners, WIDTH_CLASSES[traced.role])
        elif item is not None and item[0] == "readout" and asked is None and traced is not None:
            item = ("hidden" if WIDTH_CLASSES[traced.role] == "hidden" else item[0], *item[1:])
        if item is None:
            unclear.append(f"{name} {base_shape} -> {shape}")
            continue
        owner = owners.get(name.rpartition(".")[0])
        rows, columns = zip(matrix_shape(shape, owner), matrix_shape(base_shape, owner), strict=True)
        rest = (depths[pattern(name)], rows, columns, tuple(aliases), partners[name])
        found.append(Dimensions(name, shape, base_shape, *item, *rest))
    if unclear:
        raise InputError(
            f"no clear role for {'; '.join(unclear[:8])}. Say it with roles={{name: one of {', '.join(ROLES)}}}"
        )
    if any(item.shape != item.base_shape for item in found):
        return found
    guessed = _roles_by_structure(found, owners)
    return [
        item if item.name in (roles or {}) or pattern(item.name) in (roles or {}) else replace(item, role=role)
        for item, role in zip(found, guessed, strict=True)
    ]


@cache
def pattern(name: str) -> str:
    """The name with its layer numbers replaced by `*`."""
    return re.sub(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)", "*", name)


def stack_of(name: str) -> str:
    """The name of the stack of blocks that a parameter lies in: what comes before its first number."""
    return re.split(r"(?:^|\.)\d+\.", name, maxsplit=1)[0]


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {plain_name(name): tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=False)}


def _partners(shapes: Mapping, base_shapes: Mapping) -> dict[str, str]:
    """The base parameter of every name: the same name, or the first of the same pattern (another depth)."""
    by_pattern: dict[str, list[str]] = {}
    for name in base_shapes:
        by_pattern.setdefault(pattern(name), []).append(name)
    partners = {name: _partner(name, base_shapes, by_pattern.get(pattern(name), [])) for name in shapes}
    extra = [name for name, partner in partners.items() if not partner]
    missing = sorted(set(by_pattern) - {pattern(name) for name in shapes})
    ranks = [n for n, p in partners.items() if p and len(shapes[n]) != len(base_shapes[p])]
    if extra or missing or ranks:
        told = [f"only in the model: {', '.join(extra[:5])}"] * bool(extra)
        told += [f"only in the base: {', '.join(missing[:5])}"] * bool(missing)
        told += [f"of another number of dimensions: {', '.join(ranks[:5])}"] * bool(ranks)
        raise InputError(f"model and base differ in more than width and depth ({'; '.join(told)})")
    return partners


def _partner(name: str, base_shapes: Mapping, candidates: list[str]) -> str:
    """The same name; else, at another depth, the one whose later numbers agree (`h.9.mlp.2` has `h.*.mlp.2`)."""
    if name in base_shapes or not candidates:
        return name if name in base_shapes else ""
    own = _numbers(name)

    def agreement(other: str) -> tuple[bool, ...]:
        return tuple(mine == theirs for mine, theirs in zip(reversed(own), reversed(_numbers(other)), strict=True))

    return max(candidates, key=agreement)


def _numbers(name: str) -> list[str]:
    return re.findall(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)", name)


def _depth_ratios(shapes: Mapping, base_shapes: Mapping) -> dict[str, float]:
    model, base = (Counter(pattern(name) for name in names) for names in (shapes, base_shapes))
    return {key: count / base[key] for key, count in model.items()}


def _embedding_first(aliases: list[str], owners: Mapping) -> str:
    """A tied parameter is judged as the embedding that it is in one of its places."""
    for name in aliases:
        if isinstance(owners.get(name.rpartition(".")[0]), nn.Embedding):
            return name
    return aliases[0]


def _dimensions(
    name: str, shape: tuple, base_shape: tuple, owners: Mapping, asked: str | None
) -> tuple[str, float, float] | None:
    """(role, fan-in ratio, fan-out ratio), or None where the role is unclear."""
    owner_name, _, leaf = name.rpartition(".")
    owner = owners.get(owner_name)
    if isinstance(owner, (nn.Embedding, nn.EmbeddingBag)) and shape[0] != base_shape[0]:
        raise InputError(f"{name}: the vocabulary differs, {base_shape[0]} and {shape[0]}; only widths may change")
    ratios = [size / other for size, other in zip(shape, base_shape, strict=True)]
    grown = [ratio for ratio in ratios if ratio != 1.0]
    if asked is not None:
        return _as_asked(asked, ratios)
    axes = _axes(owner, leaf, len(shape))
    if axes is not None:
        fan_out, fan_in = (ratios[axis] if axis is not None else 1.0 for axis in axes)
        return _role(fan_in, fan_out, len(shape)), fan_in, fan_out
    if not grown:
        return "fixed", 1.0, 1.0
    if len(grown) == 1:
        alone = all(size == 1 for size, ratio in zip(shape, ratios, strict=True) if ratio == 1.0)
        if alone or (ratios[-1] != 1.0 and EMBEDDED.search(leaf)):
            return "vector" if alone else "embedding", 1.0, grown[0]
        return None
    if len(set(grown)) == 1 and len(grown) == 2:
        return "hidden", grown[0], grown[0]
    return None


def _axes(owner: nn.Module | None, leaf: str, rank: int) -> tuple[int | None, int | None] | None:
    """The (output, input) axes of a parameter by the kind of its module; None for an unknown matrix."""
    if rank == 0:
        return None, None
    if rank == 1:
        return 0, None
    if isinstance(owner, (nn.Embedding, nn.EmbeddingBag)) or type(owner).__name__ == "Conv1D":
        return 1, 0
    if isinstance(owner, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
        return 1, 0
    known = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.MultiheadAttention, nn.RNNBase)
    if isinstance(owner, known) and leaf not in ("bias_k", "bias_v"):
        return 0, 1
    return None


def _role(fan_in: float, fan_out: float, rank: int) -> str:
    if fan_in != 1.0:
        return "hidden" if fan_out != 1.0 else "readout"
    if fan_out == 1.0:
        return "fixed"
    return "embedding" if rank > 1 else "vector"


def _roles_by_structure(items: list[Dimensions], owners: Mapping) -> list[str]:
    """Tables of embeddings by module or name; other matrices hidden, but the first where no table comes before it
    (an embedding) and the last where no table is tied (the readout); the rest vectors."""
    roles = [_role_by_structure(item, owners) for item in items]
    matrices = [place for place, role in enumerate(roles) if role == "hidden"]
    before = [owners.get(item.name.rpartition(".")[0]) for item in items[: matrices[0]]] if matrices else []
    if len(matrices) > 1 and not any(isinstance(owner, nn.Embedding) for owner in before):
        roles[matrices[0]] = "embedding"
    tied = any(role == "embedding" and len(item.aliases) > 1 for item, role in zip(items, roles, strict=True))
    if matrices and not tied:
        roles[matrices[-1]] = "readout"
    return roles


def _role_by_structure(item: Dimensions, owners: Mapping) -> str:
    leaf = item.name.rpartition(".")[2]
    if len(item.shape) < 2 or (leaf != "weight" and sum(size != 1 for size in item.shape) < 2):
        return "vector" if item.shape else "fixed"
    places = [owners.get(alias.rpartition(".")[0]) for alias in item.aliases]
    if any(isinstance(place, nn.Embedding) for place in places) or (leaf != "weight" and EMBEDDED.search(leaf)):
        return "embedding"
    return "hidden"


def _as_asked(role: str, ratios: list[float]) -> tuple[str, float, float]:
    grown = max(ratios, key=lambda ratio: abs(math.log(ratio)))
    fan_in = grown if role in ("hidden", "readout") else 1.0
    fan_out = grown if role in ("hidden", "embedding", "vector") else 1.0
    return role, fan_in, fan_out
