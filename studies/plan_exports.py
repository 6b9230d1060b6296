"""Ten plans to five targets: what each cannot express, and what was verified by running.

python -m studies.plan_exports [--out docs/data/plan_exports.json] [--only TARGET ...]

`torchtitan`, `optax` and `megatron` are run where they are installed (`pip install --no-deps torchtitan spmd_types`,
`pip install optax megatron-core`), in a process of their own.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import math
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

import sigprop as sp
from sigprop.errors import SigpropError
from sigprop.models import build
from sigprop.plans import Plan
from sigprop.plans.application import size_differs
from sigprop.sites import pattern
from studies.stored import write

LR, DECAY = 1e-3, 0.1
TARGETS = ("python", "torchtitan", "optax", "megatron", "nanochat")


def decoder(**settings: Any) -> nn.Module:
    return build("transformer", **{"depth": 3, "width": 64, "heads": 4, **settings})


def ids() -> torch.Tensor:
    return torch.randint(0, 256, (1, 16), generator=torch.Generator().manual_seed(0))


PLANS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "unit": (decoder, {"recipe": "unit"}),
    "unit, muP, AdamW": (decoder, {"recipe": "unit", "width": "mup", "optimizer": "adamw"}),
    "unit, muP, Muon": (decoder, {"recipe": "unit", "width": "mup", "optimizer": "muon"}),
    "deepscale, norm after": (lambda: decoder(norm_placement="post"), {"recipe": "deepscale"}),
    "xavier": (decoder, {"recipe": "xavier"}),
    "GPT-2": (decoder, {"recipe": "gpt2"}),
    "orthogonal, Lion": (decoder, {"recipe": "orthogonal", "optimizer": "lion"}),
    "deepnorm": (lambda: decoder(norm_placement="post"), {"recipe": "deepnorm"}),
    "ReZero": (decoder, {"recipe": "rezero", "surgery": True}),
    "kaiming, MLP, SGD": (lambda: build("mlp", depth=4, width=64), {"recipe": "kaiming", "optimizer": "sgd"}),
}


def made(name: str) -> tuple[nn.Module, Plan]:
    make, options = PLANS[name]
    model = make()
    recipe = options["recipe"]
    rest = {key: value for key, value in options.items() if key != "recipe"}
    batch = ids() if "MLP" not in name else torch.randn(4, 784)
    return model, sp.plan(model, recipe, batch=batch, **rest)


def loaded(plan: Plan, target: str, folder: Path) -> tuple[ModuleType, tuple[str, ...]]:
    path = folder / f"exported_{target}.py"
    exported = plan.export(target, path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, exported.not_expressed


def plain_groups(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in group.items() if key != "params"} for group in groups]


def run_python(model: nn.Module, plan: Plan, module: ModuleType) -> str:
    """Bitwise the plan's numbers and groups, and the plan's outputs where the forward pass is changed."""
    one, other = copy.deepcopy(model), copy.deepcopy(model)
    plan.apply_(one, torch.Generator().manual_seed(1))
    module.init_(other, torch.Generator().manual_seed(1))
    named = dict(one.named_parameters())
    for name, parameter in other.named_parameters():
        assert torch.equal(parameter, named[name]), name
    kept = [group for group in plain_groups(plan.param_groups(one, LR, DECAY)) if group["param_names"]]
    if any(row.learnable for row in plan.junctions):
        return "numbers bitwise equal; groups without the learnable scales"
    assert plain_groups(module.param_groups(other, LR, DECAY)) == kept
    return "numbers and groups bitwise equal"


def same_distribution(values: torch.Tensor, row: Any) -> bool:
    return not size_differs(row, values)


def run_torchtitan(model: nn.Module, plan: Plan, module: ModuleType) -> str:
    """torchtitan's own dict lookup initializes every module, and its own container makes the groups."""
    from torchtitan.components.optimizer import OptimizersContainer
    from torchtitan.protocols.module import Module

    module.set_param_init(model)
    torch.manual_seed(0)
    for inner in model.modules():
        if list(inner.parameters(recurse=False)):
            for name, parameter in inner.named_parameters(recurse=False):
                Module._init_param(inner, name, parameter)
    for row in plan.parameters:
        parameter = dict(model.named_parameters(remove_duplicate=False)).get(row.name)
        if parameter is not None:
            assert same_distribution(parameter.detach(), row), row.name
    made_groups, _ = OptimizersContainer._build_param_groups(model, module.optimizer_groups(LR, DECAY), {})
    rates = {name: (group["lr"], group["weight_decay"]) for groups in made_groups.values() for group in groups
             for name in group["param_names"]}  # fmt: skip
    for group in plan.param_groups(model, LR, DECAY):
        for name in group["param_names"]:
            assert math.isclose(rates[name][0], group["lr"], rel_tol=1e-9), name
            assert math.isclose(rates[name][1], group["weight_decay"], rel_tol=1e-9), name
    return "run by torchtitan's Module and OptimizersContainer"


def run_optax(model: nn.Module, plan: Plan, module: ModuleType) -> str:
    """One step of optax on the new values changes each by its own rate: Adam's first step is the rate itself."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    params = {name: jnp.asarray(p.detach().numpy()) for name, p in model.named_parameters()}
    rows = {row.name: row for row in plan.parameters}
    values = module.init(jax.random.PRNGKey(0), params)
    for name, value in values.items():
        assert same_distribution(torch.from_numpy(np.array(value)), rows[name]), name
    transform = module.optimizer(values, LR)
    gradients = {name: jnp.ones_like(value) for name, value in values.items()}
    updates, _ = transform.update(gradients, transform.init(values), values)
    for name, update in updates.items():
        assert np.allclose(np.array(update), -LR * rows[name].lr, rtol=1e-4), name
    return "run: initialization and the first step"


MEGATRON = {
    "token_embedding": "embedding.word_embeddings", "position_embedding": "embedding.position_embeddings",
    "head": "output_layer", "final_norm": "decoder.final_layernorm", "blocks": "decoder.layers",
    "attention.query": "self_attention.linear_qkv", "attention.key": "self_attention.linear_qkv",
    "attention.value": "self_attention.linear_qkv", "attention.output": "self_attention.linear_proj",
    "mlp.up": "mlp.linear_fc1", "mlp.down": "mlp.linear_fc2", "attention_norm": "input_layernorm",
    "mlp_norm": "pre_mlp_layernorm",
}  # fmt: skip
"""Modules of the reference Transformer, each with its name in Megatron's GPTModel."""


def run_megatron(model: nn.Module, plan: Plan, module: ModuleType) -> str:
    """Megatron's own GPTModel and groups have what the plan says, but for the rows named as not expressed."""
    if not hasattr(model, "token_embedding"):
        return "syntax; Megatron has no such network"
    from megatron.core.optimizer import OptimizerConfig, _get_param_groups

    theirs = megatron_model(model, module)
    rate = LR * module.LR
    options = OptimizerConfig(lr=rate, decoupled_lr=rate * module.DECOUPLED_LR, min_lr=0.0)
    rates = {id(p): g["max_lr"] for g in _get_param_groups([theirs], options, None) for p in g["params"]}
    named = dict(theirs.named_parameters())
    missing = plan.export("megatron").not_expressed
    for row in plan.parameters:
        told = [line for line in missing if line.startswith((f"{row.name}:", f"{pattern(row.name)}:"))]
        parameter = named.get(megatron_name(row.name))
        assert parameter is not None or any("no setting" in line for line in told), row.name
        if parameter is not None and not any("initialized as" in line for line in told):
            assert same_distribution(parameter.detach(), row), row.name
        if parameter is not None:
            has = next((float(line.rpartition(" ")[2]) for line in told if "learning rate" in line), row.lr)
            assert math.isclose(rates[id(parameter)], LR * has, rel_tol=1e-5), row.name
    return "run by megatron-core's GPTModel and its groups"


def megatron_model(model: nn.Module, module: ModuleType) -> nn.Module:
    """Their network of the same shape, on a CPU in one process."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
    own: Any = model.config
    torch.manual_seed(0)
    shape = {"num_layers": own.depth, "hidden_size": own.width, "num_attention_heads": own.heads}
    config = module.transformer_config(**shape, use_cpu_initialization=True)
    size = {"vocab_size": own.vocabulary, "max_sequence_length": own.context}
    return GPTModel(config, get_gpt_layer_local_spec(), **size)


def megatron_name(name: str) -> str:
    for own, other in MEGATRON.items():
        name = re.sub(rf"(^|\.){re.escape(own)}(?=\.)", rf"\1{other}", name)
    return name


def run_nanochat(model: nn.Module, plan: Plan, module: ModuleType) -> str:
    """`init_weights` on a model with the attributes that it reads of nanochat's GPT; that class is not on PyPI."""
    asked: list[tuple[int, int]] = []
    stand_in: Any = model
    stand_in.config = SimpleNamespace(n_embd=64, n_head=4)
    stand_in.rotary_seq_len = 160
    stand_in._precompute_rotary_embeddings = lambda *size: asked.append(size) or (torch.ones(1), torch.zeros(1))
    torch.manual_seed(0)
    module.init_weights(stand_in)
    learnable = any(row.learnable for row in plan.junctions)
    named = dict(model.named_parameters())
    for row in plan.parameters:
        assert row.name in named or learnable, row.name
        assert row.name not in named or same_distribution(named[row.name].detach(), row), row.name
    assert asked == [(160, 16)]
    return "`init_weights` run on a stand-in of nanochat's class; rates syntax"


RUN: dict[str, Callable[[nn.Module, Plan, ModuleType], str]] = {
    "python": run_python, "torchtitan": run_torchtitan, "optax": run_optax, "megatron": run_megatron,
    "nanochat": run_nanochat,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", default=TARGETS)
    given = parser.parse_args()
    found = []
    for name in PLANS:
        try:
            model, plan = made(name)
        except SigpropError as error:
            print(name, "refused:", error)
            continue
        for target in given.only:
            with tempfile.TemporaryDirectory() as folder:
                missing = plan.export(target).not_expressed
                try:
                    module, _ = loaded(plan, target, Path(folder))
                    told = RUN[target](copy.deepcopy(model), plan, module)
                except ModuleNotFoundError as error:
                    told = f"not run: {error.name} is not installed"
            found.append({"plan": name, "target": target, "verified": told, "rows": len(plan),
                          "not_expressed": len(missing), "first": missing[:3]})  # fmt: skip
            print(name, "|", target, "|", told, "|", len(missing), flush=True)
    if given.out is not None:
        write(given.out, found)


if __name__ == "__main__":
    main()
