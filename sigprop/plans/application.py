"""Applying a `Plan` to a model: match the names, initialize the parameters, set the scales.

Everything goes by qualified name, with the prefixes of wrappers (`torch.compile`, FSDP, DDP, activation
checkpointing) left out, so that one plan serves the plain model, its copies and its wrapped forms. Saved weights carry
the digest of the plan in the metadata of their safetensors file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_model
from torch import Tensor, nn

from sigprop.compat import forward_hooks, remove_forward_hooks
from sigprop.errors import InputError, UnknownNameError
from sigprop.plans import hooks, writing
from sigprop.plans.rows import ParameterPlan, ScalePlan
from sigprop.plans.writing import Saved, all_or_nothing, fill
from sigprop.results.parameters import KEEP, Init
from sigprop.sites import modules_of, parameter_names, plain_name, unwrap

if TYPE_CHECKING:
    from sigprop.plans.plan import Plan


TRUNCATED_STD = 0.9866
"""Standard deviation of a unit normal that is cut at three."""
APPLIED = "_sigprop_plan"
"""Attribute of a model that carries a plan: the plan's digest."""


def match(plan: Plan, model: nn.Module) -> list[tuple[ParameterPlan, nn.Parameter]]:
    """Every row with its parameter; raises when a parameter has no row, two rows, or another shape."""
    rows = {row.name: row for row in plan.parameters}
    parameters = {plain_name(name): parameter for name, parameter in unwrap(model).named_parameters()}
    learned = hooks.learned_names(plan.junctions)
    pairs, missing, twice, shapes = [], [], [], []
    for first, aliases in parameter_names(model).items():
        found = [rows.pop(name) for name in aliases if name in rows]
        if not found:
            missing.append(first)
        elif len(found) > 1:
            twice.append(" = ".join(row.name for row in found))
        elif tuple(parameters[first].shape) != tuple(found[0].shape):
            shapes.append(f"{first} {tuple(parameters[first].shape)} (plan: {tuple(found[0].shape)})")
        else:
            pairs.append((found[0], parameters[first]))
    problems = {
        "no row for": missing,
        "more than one row for the tied": twice,
        "another shape at": shapes,
        "rows that name no parameter of the model:": [n for n in rows if n not in learned],
    }
    told = [f"{what} {', '.join(names[:8])}{' ...' * (len(names) > 8)}" for what, names in problems.items() if names]
    if told:
        raise InputError("the plan does not fit the model: " + "; ".join(told))
    return pairs


def apply_plan(plan: Plan, model: nn.Module, generator: torch.Generator | None) -> nn.Module:
    """Check everything, then initialize and scale; what fails or is interrupted leaves the model as it was.

    A plan that initializes may be applied again, and initializes anew. One that rescales the present values is refused
    on a model that carries a plan already.
    """
    inner = unwrap(model)
    _require_values(match(plan, model))
    rescales = any(row.init.kind == "keep" and row.init.value != 1.0 for row in plan.parameters)
    if rescales and getattr(inner, APPLIED, None):
        raise InputError("this plan rescales the present values and a plan was already applied: build the model anew")
    padding = {id(m.weight): m.padding_idx for m in inner.modules() if isinstance(m, nn.Embedding)}
    generator = writing.common_generator(inner) if generator is None else generator
    with attached(plan, model, generator) as saved:
        for row, parameter in match(plan, model):
            if row.init == KEEP:
                continue
            saved.keep(parameter)
            if row.init.kind == "keep":
                parameter.mul_(row.init.value)
                continue
            zero_row = padding.get(id(parameter))
            if writing.is_sharded(parameter) and row.init.kind in writing.STREAMED:
                writing.fill_pieces(parameter, partial(_values, row.init, generator=generator), zero_row)
                continue
            values = _initial(row, generator)
            if zero_row is not None:
                values[zero_row] = 0.0
            fill(parameter, values)
    return model


def _require_values(pairs: list[tuple[ParameterPlan, nn.Parameter]]) -> None:
    """Refuse parameters that cannot be written, and those without values where the plan keeps what is there."""
    for row, parameter in pairs:
        kept = row.init.kind == "keep"
        if parameter.is_meta:
            told = (
                "the plan keeps its values, of which there are none: build the model for real (not by model.to_empty)"
            )
            told = told if kept else "call model.to_empty(device=...) first"
            raise InputError(f"parameters on the meta device ({row.name}, ...): {told}")
        if kept and not _is_finite(parameter):
            raise InputError(
                f"{row.name} holds numbers that are not finite, and the plan keeps what it holds: load or initialize "
                "the model first (to_empty leaves whatever the memory held), or choose a recipe that initializes"
            )


def _is_finite(parameter: nn.Parameter) -> bool:
    values = parameter.detach()
    local: Any = getattr(values, "to_local", lambda: values)()
    return bool(local.isfinite().all())


@contextmanager
def attached(plan: Plan, model: nn.Module, generator: torch.Generator | None = None) -> Iterator[Saved]:
    """Hooks and changed numbers of modules put back on a model; whatever fails inside takes them off again."""
    inner = unwrap(model)
    learned = hooks.learned_names(plan.junctions)
    values = {name: parameter for name, parameter in inner.named_parameters() if plain_name(name) in learned}
    with all_or_nothing(inner, generator) as saved, torch.no_grad():
        match(plan, model)
        hooks.install(plan.junctions, modules_of(inner))
        for name, parameter in values.items():
            inner.get_parameter(name).copy_(parameter)
        _apply_scales(plan, inner)
        setattr(inner, APPLIED, plan.digest)
        yield saved


def attach_plan(plan: Plan, model: nn.Module, learned: Mapping[str, torch.Tensor] | None = None) -> nn.Module:
    """`attached`, with the values of learned scales; those that nobody gives are marked as not loaded."""
    inner = unwrap(model)
    modules = modules_of(inner)
    wanted = hooks.learned_names(plan.junctions)
    present = {plain_name(name) for name, _ in inner.named_parameters()} - set(hooks.unread(modules))
    with attached(plan, model) as saved:
        for name, value in (learned or {}).items():
            saved.write(modules_of(inner)[name.rpartition(".")[0]].get_parameter(hooks.LEARNED), value)
        hooks.mark_unread(modules, wanted - present - set(learned or {}))
    return model


def verify_plan(plan: Plan, model: nn.Module, sizes: bool = False) -> list[str]:
    """What a model lacks of a plan, one line each; `sizes` also compares these, before the first step of training."""
    inner = unwrap(model)
    try:
        pairs = match(plan, model)
    except InputError as error:
        return [str(error)]
    modules = modules_of(inner)
    lacking = [
        f"{name}: this learned scale was not loaded; give plan.attach_(model, weights=...) the file it was saved in"
        for name in hooks.unread(modules)
    ]
    lacking += [f"{row.name}: not finite" for row, item in pairs if not item.is_meta and not _is_finite(item)]
    for row in plan.scales:
        if not _has_scale(modules.get(row.module), row):
            lacking.append(f"{row.module}: {row.place} is not multiplied by {row.factor:.4g}; call plan.attach_(model)")
    installed = hooks.installed(modules)
    lacking += [
        f"{row.name}: the junction is not scaled; call plan.attach_(model)"
        for row in plan.junctions
        if hooks.is_hooked(row) and row.name not in installed
    ]
    if sizes:
        lacking += [told for row, parameter in pairs if (told := size_differs(row, parameter))]
    return lacking


def size_differs(row: ParameterPlan, parameter: Tensor) -> str:
    """Constants exactly; root mean squares of random entries within five standard errors."""
    values = parameter.detach().double()
    if row.init.kind == "constant":
        wrong = not torch.allclose(values, torch.full_like(values, row.init.value), rtol=1e-3, atol=1e-6)
        return f"{row.name}: not the constant {row.init.value:.4g}" if wrong else ""
    if row.init.kind not in ("normal", "truncated", "uniform", "orthogonal"):
        return ""
    size = float(values.square().mean().sqrt())
    wrong = abs(size / row.init.std - 1.0) > 5 / math.sqrt(2 * values.numel()) + 1e-3 if row.init.std else size > 0
    return f"{row.name}: root mean square {size:.4g}, initialized with {row.init.std:.4g}" if wrong else ""


def _initial(row: ParameterPlan, generator: torch.Generator | None) -> torch.Tensor:
    try:
        return _values(row.init, tuple(row.shape), generator)
    except InputError as error:
        raise InputError(f"{row.name}: {error}") from error


def _values(init: Init, shape: tuple[int, ...], generator: torch.Generator | None) -> torch.Tensor:
    """The whole parameter in float32 on the generator's device, whatever the sharding of its target."""
    device = generator.device if generator is not None else "cpu"
    if init.kind == "blocks":
        if not -len(shape) <= init.axis < len(shape):
            raise InputError(f"init blocks lie along axis {init.axis}, the shape is {shape}")
        if sum(init.sizes) != shape[init.axis]:
            raise InputError(f"init sizes {init.sizes} do not add up to axis {init.axis} of shape {shape}")
        pieces = []
        for size, part in zip(init.sizes, init.parts, strict=True):
            piece = list(shape)
            piece[init.axis] = size
            pieces.append(_values(part, tuple(piece), generator))
        return torch.cat(pieces, dim=init.axis)
    values = torch.empty(shape, dtype=torch.float32, device=device)
    if init.kind == "constant":
        return values.fill_(init.value)
    if init.kind == "normal":
        return values.normal_(0.0, init.std, generator=generator)
    if init.kind == "truncated":
        spread = init.std / TRUNCATED_STD
        return nn.init.trunc_normal_(values, 0.0, spread, -3.0 * spread, 3.0 * spread, generator=generator)
    if init.kind == "uniform":
        bound = init.std * math.sqrt(3.0)
        return values.uniform_(-bound, bound, generator=generator)
    if init.kind == "orthogonal":
        if values.dim() < 2:
            raise InputError(f"orthogonal init needs two or more dimensions, got shape {shape}")
        longer = max(shape[0], values.numel() // shape[0])
        return nn.init.orthogonal_(values, gain=init.std * math.sqrt(longer), generator=generator)
    raise InputError(f"init kind {init.kind!r} cannot be part of blocks")


def _apply_scales(plan: Plan, model: nn.Module) -> None:
    modules = modules_of(model)
    for module in modules.values():
        remove_forward_hooks(module, hooks.ScaleHook)
    for row in plan.scales:
        _scale(modules, row.module, row.factor, row.place)


def _has_scale(module: nn.Module | None, row: ScalePlan) -> bool:
    """Whether a module has the hook, or the multiplied number, that a row asks for."""
    if module is None or row.factor == 1.0:
        return module is not None
    if row.place.startswith("attribute:"):
        attribute = row.place.partition(":")[2]
        originals = getattr(module, "_sigprop_originals", {})
        return attribute in originals and math.isclose(getattr(module, attribute), originals[attribute] * row.factor)
    found = [hook for hook in forward_hooks(module) if isinstance(hook, hooks.ScaleHook)]
    return any((hook.scale, hook.place) == (row.factor, row.place) for hook in found)


def _scale(modules: dict[str, nn.Module], name: str, factor: float, place: str) -> None:
    if name not in modules:
        raise UnknownNameError("module", name, modules)
    module = modules[name]
    if place.startswith("attribute:"):
        _scale_attribute(module, place.partition(":")[2], factor)
    elif factor != 1.0:
        hooks.register(module, hooks.ScaleHook(place, factor))


def _scale_attribute(module: nn.Module, attribute: str, factor: float) -> None:
    """Multiply one number of the module, from its original value however often a plan is applied."""
    originals = module.__dict__.setdefault("_sigprop_originals", {})
    present = originals.get(attribute, getattr(module, attribute, None))
    if not isinstance(present, float):
        raise InputError(
            f"{type(module).__name__}.{attribute} is no floating-point number, but {type(present).__name__}: a scale "
            "with place=attribute:NAME multiplies a number of the module"
        )
    original = originals.setdefault(attribute, present)
    setattr(module, attribute, original * factor if factor != 1.0 else original)


KEY = "sigprop_plan"


def save_weights(plan: Plan, model: nn.Module, path: str | Path) -> None:
    save_model(unwrap(model), str(path), metadata={KEY: plan.digest, "format": "pt"})


def load_weights(plan: Plan, model: nn.Module, path: str | Path) -> nn.Module:
    """Attach the plan and load the file, all of it or nothing; a file of another plan is refused."""
    metadata, values = _read(Path(path))
    found = metadata.get(KEY)
    if found != plan.digest:
        told = f"was saved with plan {found}" if found else "carries no plan"
        raise InputError(f"{path} {told}, this is plan {plan.digest}: load it with the plan it was saved with")
    with attached(plan, model) as saved:
        state = unwrap(model).state_dict(keep_vars=True)
        _require_fit(state, values, path)
        for name, value in values.items():
            saved.write(state[name], value)
    return model


def learned_values(source: str | Path | Mapping[str, Tensor], names: set[str]) -> dict[str, Tensor]:
    """The values of learned scales, from a state dict, a file of safetensors, or a folder of such files."""
    if isinstance(source, Mapping):
        found = dict(source)
    else:
        folder = Path(source)
        files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else [folder]
        found = {name: value for file in files for name, value in _read(file, names)[1].items()}
    found = {plain_name(name): value for name, value in found.items() if plain_name(name) in names}
    lacking = sorted(names - set(found))
    if lacking:
        raise InputError(
            f"the weights given hold no {', '.join(lacking[:4])}: these scales were learned; give the file"
        )
    return found


def _read(path: Path, names: set[str] | None = None) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of a file (those of some names), or what is wrong with it."""
    try:
        with safe_open(str(path), framework="pt") as file:
            keys = [key for key in file.keys() if names is None or plain_name(key) in names]  # noqa: SIM118
            return dict(file.metadata() or {}), {key: file.get_tensor(key) for key in keys}
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} cannot be read as safetensors ({error}): save the weights again") from error


def _require_fit(state: Mapping[str, Any], values: Mapping[str, Tensor], path: str | Path) -> None:
    """Every tensor of the model has a value of its shape, under one of its names."""
    places = {(each.data_ptr(), each.shape) for name, each in state.items() if name in values and not each.is_meta}
    lacking = [n for n, each in state.items() if n not in values and (each.data_ptr(), each.shape) not in places]
    more = [name for name in values if name not in state]
    shapes = [name for name, value in values.items() if name in state and value.shape != state[name].shape]
    told = [f"no value for {', '.join(lacking[:4])}"] * bool(lacking)
    told += [f"another shape at {', '.join(shapes[:4])}"] * bool(shapes)
    told += [f"names that the model lacks: {', '.join(more[:4])}"] * bool(more)
    if told:
        raise InputError(f"{path} does not fit the model: {'; '.join(told)}. Nothing was loaded")
