"""Somebody's own model in the explorer: its graph, recorded once, evaluated under the distributions of the controls."""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass, field, make_dataclass
from functools import lru_cache
from typing import Any

from sigprop.distributions import build
from sigprop.inputs import ModelSource, open_source
from sigprop.inputs.user_file import is_user_object, read_user_object
from sigprop.plans import Plan
from sigprop.plans.recipes.planned_states import PredictedPlan, predict_made
from sigprop.plans.recipes.rows import RECIPES, scale_rows
from sigprop.research.explorer.controls import ARCHITECTURES, ArchitectureControls, Choice, Range
from sigprop.results.parameters import VECTORS
from sigprop.structure import Structure, read_structure

NAME = "own"
AS_IT_IS = "as it is"
OFFERED = (AS_IT_IS, "unit", "deepscale", "xavier", "gpt2", "kaiming", "lecun")
FACTOR = Range(0.05, 5.0, 0.05)
TOKENS = 32
SIZES = {"width": Range(16, 4096, 16), "depth": Range(1, 96, 1)}


@dataclass
class OwnModel:
    """A MODEL of the command line; `predicted` evaluates it under a recipe, with factors of std by role."""

    text: str
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.structure = lru_cache(maxsize=16)(self._structure)
        self.made = lru_cache(maxsize=64)(self._made)
        self.sizes = self._sizes()

    def source(self, **sizes: int) -> ModelSource:
        return open_source(self.text, {**self.settings, **sizes}, batch=1, tokens=TOKENS)

    def _structure(self, *sizes: int) -> Structure:
        source = self.source(**dict(zip(self.sizes, sizes, strict=True)))
        return read_structure(build(source.build), source.batch)

    def _made(self, recipe: str, *sizes: int) -> Plan:
        """The recipe for these sizes; some are solved by evaluating the graph several times."""
        return RECIPES["own" if recipe == AS_IT_IS else recipe](self.structure(*sizes))

    def _sizes(self) -> dict[str, int]:
        """Width and depth where the factory takes them and they are not given, with what they are."""
        if not is_user_object(self.text):
            return {}
        found = read_user_object(self.text)
        given = {**(found.settings or {}), **self.settings}
        taken = {key: item.default for key, item in inspect.signature(found.value).parameters.items()}
        known = {key: given.get(key, taken[key]) for key in SIZES if key in taken and not found.arguments}
        if any(key in (found.settings or {}) for key in known):
            self.text = f"{self.text.partition('(')[0]}"
            self.settings = given
        return {key: value for key, value in known.items() if isinstance(value, int)}

    @property
    def roles(self) -> list[str]:
        structure = self.structure(*self.sizes.values())
        return [role for role in dict.fromkeys(item.role for item in structure) if role not in (*VECTORS, "fixed")]

    def plan(
        self, recipe: str = AS_IT_IS, factors: dict[str, float] | None = None, **sizes: int
    ) -> tuple[Structure, Plan]:
        numbers = ({**self.sizes, **sizes}).values()
        structure, made = self.structure(*numbers), self.made(recipe, *numbers)
        roles = {item.name: item.role for item in structure}
        return structure, scale_rows(made, {name: (factors or {}).get(role, 1.0) for name, role in roles.items()})

    def predicted(self, recipe: str = AS_IT_IS, factors: dict[str, float] | None = None, **sizes: int) -> PredictedPlan:
        """The residual stream under these distributions: variance, gradient and token correlation by sum."""
        structure, made = self.plan(recipe, factors, **sizes)
        structure.require("the explorer", "junctions")
        return predict_made(structure, made, recipe)

    def code(self, recipe: str, factors: dict[str, float], sizes: dict[str, int]) -> str:
        """Python that makes the view."""
        changed = {key: value for key, value in factors.items() if value != 1.0}
        given = f"{self.text!r}" + (f", {self.settings!r}" if self.settings else "")
        options = "".join(f", {key}={value}" for key, value in sizes.items())
        return (
            "from sigprop.research.explorer.own import OwnModel\n\n"
            f"model = OwnModel({given})\nprint(model.predicted({recipe!r}, {changed!r}{options}).to_dict())\n"
        )


def register(model: OwnModel) -> Any:
    """Let the explorer show a model, in front of the reference networks; refused with the reason where it cannot."""
    controls: dict[str, Any] = {key: SIZES[key] for key in model.sizes} | {"recipe": Choice(OFFERED)}
    keys = {f"std_{role.replace(' ', '_')}": role for role in model.roles}
    controls |= dict.fromkeys(keys, FACTOR)
    starts = {"architecture": NAME, **model.sizes, "recipe": AS_IT_IS, **dict.fromkeys(keys, 1.0)}
    kind = make_dataclass("OwnSettings", [(key, type(value), value) for key, value in starts.items()], frozen=True)
    model.predicted()
    before = dict(ARCHITECTURES)
    ARCHITECTURES.clear()
    ARCHITECTURES.update({NAME: ArchitectureControls(controls, lambda _: (model, keys), "tokens", kind()), **before})
    return kind


def own_view(settings: Any) -> tuple[dict[str, list[float]], float, str, str]:
    """Curves, sensitivity, status and code of one choice of the controls."""
    model, keys = ARCHITECTURES[NAME].blueprint(settings)
    values = asdict(settings)
    factors = {role: values[key] for key, role in keys.items()}
    sizes = {key: values[key] for key in model.sizes}
    code = model.code(values["recipe"], factors, sizes)
    found = model.predicted(values["recipe"], factors, **sizes)
    curves = {
        "variance": found.variance,
        "grad_variance": found.grad_variance,
        "token_correlation": found.token_correlation,
        "entropy": [],
    }
    return curves, found.sensitivity, f"predicted: {model.text}", code
