"""A plan as code of another trainer: text that needs no sigprop, with every row that the target cannot express named.

| target | what is written | how it is verified |
|---|---|---|
| `python` | a plain file: `init_(model)` and `param_groups(model, lr)` | run: the same numbers and groups as the plan |
| `torchtitan` | `param_init` of every module, `ParamGroupConfig` patterns | run against torchtitan's own classes |
| `optax` | `init(key)` and a `multi_transform` by labels | run with jax |
| `megatron` | arguments and `TransformerConfig` fields | run: megatron-core's own network and groups |
| `nanochat` | `init_weights` and rates of `setup_optimizers` | `init_weights` run on a stand-in |
"""

from sigprop.plans.export.targets import TARGETS, Export, export_plan

__all__ = ["TARGETS", "Export", "export_plan"]
