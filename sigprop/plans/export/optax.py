"""optax: parameters as a flat dictionary by name, `init(key)` and a `multi_transform` of Adam by labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sigprop.plans.export.targets import TARGETS, decayed_settings, folded, forward_rows, init_rows

if TYPE_CHECKING:
    from sigprop.plans.plan import Plan

CODE = '''

def row_of(table, name):
    starred = ".".join("*" if part.isdigit() else part for part in name.split("."))
    return table[name] if name in table else table[starred]


def draw(key, how, shape):
    kind = how[0]
    if kind == "blocks":
        _, axis, sizes, parts = how
        keys = jax.random.split(key, len(parts))
        shapes = [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
        return jnp.concatenate([draw(k, part, piece) for k, part, piece in zip(keys, parts, shapes)], axis=axis)
    value = how[1]
    if kind == "constant":
        return jnp.full(shape, value)
    if kind == "normal":
        return value * jax.random.normal(key, shape)
    if kind == "truncated":
        return value / 0.9866 * jax.random.truncated_normal(key, -3.0, 3.0, shape)
    if kind == "uniform":
        return jax.random.uniform(key, shape, minval=-value * 3**0.5, maxval=value * 3**0.5)
    if kind == "orthogonal":
        matrix = (shape[0], math.prod(shape[1:]))
        return jax.nn.initializers.orthogonal(value * math.sqrt(max(matrix)))(key, matrix).reshape(shape)
    raise ValueError(f"{kind}: give the value that the model has already")


def init(key, params):
    """New values for a flat dictionary of arrays by name, each of the shape that it has."""
    keys = dict(zip(sorted(params), jax.random.split(key, len(params))))
    made = {}
    for name, old in params.items():
        how = row_of(INIT, name)
        made[name] = how[1] * old if how[0] == "keep" else draw(keys[name], how, old.shape).astype(old.dtype)
    return made


def label(name):
    return str(row_of(FACTORS, name))


def optimizer(params, lr, weight_decay=0.0, b1=0.9, b2=0.95, eps=1e-8):
    """One transformation per set of factors; gains and biases do not decay."""
    rows = {label(name): row_of(FACTORS, name) for name in params}
    transforms = {
        key: optax.adamw(lr * rate, b1=b1, b2=b2, eps=eps * floor, weight_decay=weight_decay * decay)
        for key, (rate, decay, floor) in rows.items()
    }
    return optax.multi_transform(transforms, {name: label(name) for name in params})
'''


@TARGETS.register("optax")
def written(plan: Plan) -> tuple[str, list[str]]:
    missing = forward_rows(plan)
    if plan.meta.get("optimizer", "adamw") != "adamw":
        missing.append(
            f"optimizer {plan.meta['optimizer']}: written as AdamW, with the factors of {plan.meta['optimizer']}"
        )
    lines = ["import math", "", "import jax", "import jax.numpy as jnp", "import optax", ""]
    lines += ["# name: how it is initialized, and its std or value", *init_rows(plan)]
    lines += ["# name: factors of learning rate, weight decay and epsilon", "FACTORS = {"]
    lines += [f"    {name!r}: {value!r}," for name, (value, _) in folded(plan, decayed_settings).items()]
    return "\n".join([*lines, "}"]) + CODE, missing
