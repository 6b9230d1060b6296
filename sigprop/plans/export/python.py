"""A plain Python file: `init_(model)` makes the numbers of `plan.apply_`, `param_groups(model, lr)` its groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sigprop.plans.export.targets import TARGETS, commented, folded, hooked_rows, init_rows, settings
from sigprop.plans.optimizers import MATRIX_ONLY
from sigprop.results.parameters import VECTORS

if TYPE_CHECKING:
    from sigprop.plans.plan import Plan

CODE = '''

WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


def plain(name):
    for prefix in WRAPPERS:
        name = name.replace(prefix, "")
    return name


def row_of(table, names, default=None):
    """The row of a parameter by one of its names, or by its name with `*` for every number."""
    for name in names:
        starred = ".".join("*" if part.isdigit() else part for part in name.split("."))
        if name in table or starred in table:
            return table[name] if name in table else table[starred]
    if default is None:
        raise KeyError(f"no row for {names[0]}")
    return default


def parameters_of(model):
    """Every parameter once, with all its names."""
    names = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(plain(name))
    return [(names[id(parameter)], parameter) for parameter in model.parameters()]


def draw(how, shape, generator):
    kind = how[0]
    if kind == "blocks":
        _, axis, sizes, parts = how
        shapes = [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
        return torch.cat([draw(part, piece, generator) for part, piece in zip(parts, shapes)], dim=axis)
    device = generator.device if generator is not None else "cpu"
    values = torch.empty(shape, dtype=torch.float32, device=device)
    std = how[1]
    if kind == "constant":
        return values.fill_(std)
    if kind == "normal":
        return values.normal_(0.0, std, generator=generator)
    if kind == "truncated":
        wide = std / 0.9866
        return nn.init.trunc_normal_(values, 0.0, wide, -3.0 * wide, 3.0 * wide, generator=generator)
    if kind == "uniform":
        bound = std * math.sqrt(3.0)
        return values.uniform_(-bound, bound, generator=generator)
    if kind == "orthogonal":
        longer = max(shape[0], values.numel() // shape[0])
        return nn.init.orthogonal_(values, gain=std * math.sqrt(longer), generator=generator)
    raise ValueError(f"unknown initialization {kind}")


@torch.no_grad()
def init_(model, generator=None):
    """Initialize every parameter in place and set the forward scales; returns the model."""
    padding = {id(m.weight): m.padding_idx for m in model.modules() if isinstance(m, nn.Embedding)}
    for names, parameter in parameters_of(model):
        how = row_of(INIT, names)
        if how[0] == "keep":
            if how[1] != 1.0:
                parameter.mul_(how[1])
            continue
        values = draw(how, tuple(parameter.shape), generator)
        if padding.get(id(parameter)) is not None:
            values[padding[id(parameter)]] = 0.0
        parameter.copy_(values)
    modules = {plain(name): module for name, module in model.named_modules()}
    for name, factor, place in SCALES:
        scale(modules[name], factor, place)
    return model


def scale(module, factor, place):
    """Let a module multiply its input, its output or one of its numbers."""
    if place.startswith("attribute:"):
        attribute = place.partition(":")[2]
        setattr(module, attribute, getattr(module, attribute) * factor)
    elif place == "output":
        module.register_forward_hook(lambda m, inputs, output: first(output, factor))
    else:
        module.register_forward_pre_hook(lambda m, args, kwargs: first_input(args, kwargs, factor), with_kwargs=True)


def first(output, factor):
    if isinstance(output, (tuple, list)):
        return type(output)([output[0] * factor, *output[1:]])
    return output * factor


def first_input(inputs, kwargs, factor):
    if inputs:
        return (inputs[0] * factor, *inputs[1:]), kwargs
    key = next(iter(kwargs))
    return inputs, {**kwargs, key: kwargs[key] * factor}


def param_groups(model, lr, weight_decay=0.0, eps=None, **options):
    """Parameter groups for a torch optimizer; gains and biases do not decay."""
    if eps is None and any(row[2] != 1.0 for row in FACTORS.values()):
        eps = 1e-8
    groups = {}
    for names, parameter in parameters_of(model):
        if not parameter.requires_grad:
            continue
        rate, decay, floor, is_vector = row_of(FACTORS, names, DEFAULT)
        decay = decay if weight_decay and not (is_vector or parameter.dim() < 2) else 0.0
        floor = floor if eps is not None else 1.0
        key = tuple(float(f"{value:.12g}") for value in (rate, decay, floor))
        made = {"params": [], "param_names": [], "lr": lr * rate, "weight_decay": weight_decay * decay}
        group = groups.setdefault(key, made | ({} if eps is None else {"eps": eps * floor}) | options)
        group["params"].append(parameter)
        group["param_names"].append(names[0])
    return list(groups.values())
'''


@TARGETS.register("python")
def written(plan: Plan) -> tuple[str, list[str]]:
    missing, name = hooked_rows(plan), str(plan.meta.get("optimizer", "adamw"))
    if name.partition(":")[0] in MATRIX_ONLY:  # which of two optimizers trains a parameter is not written
        missing.append(f"optimizer {name}: it trains the matrices inside, and AdamW the rest")
    from_roles = folded(plan, lambda row: (*settings(row), row.role in VECTORS))
    lines = ["import math", "", "import torch", "from torch import nn", ""]
    lines += ["# name: how it is initialized, and its std or value", *init_rows(plan)]
    lines += ["# name: factors of learning rate, weight decay and epsilon, and whether it is a gain or bias"]
    lines += ["DEFAULT = (1.0, 1.0, 1.0, False)", "FACTORS = {"]
    lines += [f"    {name!r}: {value!r}," for name, (value, _) in from_roles.items() if value != (1.0, 1.0, 1.0, False)]
    lines += [
        "}",
        "# module, factor, and what it multiplies: input, output or attribute:NAME",
    ]
    lines += ["SCALES = ["]
    lines += [
        commented(f"    {(row.module, row.factor, row.place)!r},", row.why) for row in plan.scales if row.factor != 1
    ]
    return "\n".join([*lines, "]"]) + CODE, missing
