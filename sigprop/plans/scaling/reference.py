r"""Width and depth rules without a base model: every matrix beside a reference of fixed size.

The reference is a layer of `REFERENCE_WIDTH` = 128 inputs in a stack of `REFERENCE_LAYERS` = 4 layers. With fan-in `f`,
stream width `d` and `m = f / 128`, a rule with readout exponent `A` and alignment `alpha` asks of Adam

    matrices, readout, router   lr  m^{-alpha}               (muP: 128 / fan-in)
    input                       lr  min(1, m^{-alpha})
    embeddings, gains, biases   lr  1
    positions, tied tables      lr  std sqrt(128)            (not with SGD)
    all but the readout         epsilon  (d/128)^{-A}
    readout                     std  min(1, m^{-(A - 1/2)}) on top of the recipe's, which is taken to go like f^{-1/2}

so that one step moves what a layer puts out by the same amount whatever it reads, and the entries of a table that has
to be shaped by the same share of their size as those of a layer with 128 inputs. The learning rate that is left is
the rate of a layer with 128 inputs, and of every vector. A rate tuned at another size is carried by `base=` instead.
"""

from __future__ import annotations

from torch import nn

from sigprop.plans.matrix_optimizers import matrix_shape
from sigprop.plans.multipliers import Sizes
from sigprop.plans.scaling.dimensions import Dimensions
from sigprop.plans.scaling.width_rules import WidthRule
from sigprop.results.roles import WIDTH_CLASSES
from sigprop.sites import plain_name
from sigprop.structure import Parameter, Structure

REFERENCE_WIDTH = 128
REFERENCE_LAYERS = 4


def reference_dimensions(structure: Structure, width: int = REFERENCE_WIDTH) -> list[Dimensions]:
    """Every parameter beside the reference; `depth` is 1 outside residual branches."""
    modules = () if structure.model is None else structure.model.named_modules()
    owners = {plain_name(name): module for name, module in modules}
    return [_dimensions(structure, item, width, owners.get(item.name.rpartition(".")[0])) for item in structure]


def _dimensions(structure: Structure, item: Parameter, width: int, owner: nn.Module | None) -> Dimensions:
    kind = WIDTH_CLASSES[item.role] if len(item.shape) > 1 else "vector"
    stream = (structure.width or item.fan_out) / width
    fan_in = item.fan_in / width if len(item.shape) > 1 and item.role not in ("embedding", "positional") else 1.0
    junction = structure.junction_of(item)
    depth = structure.layers(junction.stream) / REFERENCE_LAYERS if junction is not None else 1.0
    rows, columns = matrix_shape(item.shape, owner)
    grows = 1.0 if kind == "readout" or not item.shape or _beside_readout(structure, item) else stream
    fan_out = item.fan_out / width if kind == "hidden" else grows
    return Dimensions(
        item.name, item.shape, item.shape, kind, fan_in, fan_out, depth, (rows, width), (columns, width), (item.name,),
        item.name,
    )  # fmt: skip


def _beside_readout(structure: Structure, item: Parameter) -> bool:
    owner = item.name.rpartition(".")[0]
    return any(other.role == "readout" and other.name.rpartition(".")[0] == owner for other in structure)


def reference_sizes(rule: WidthRule, item: Dimensions, role: str, stream: float, sizes: Sizes) -> Sizes:
    """What is left to do to the sizes beside the reference: inputs by their fan-in, gradients by the stream's width."""
    update = min(1.0, item.fan_in**-rule.alpha_hidden) if role == "input" else 1.0
    asked = 1.0 if item.fan_out == 1.0 or item.role == "readout" else stream**-rule.readout
    return Sizes(sizes.weight, sizes.update * update, sizes.gradient * asked / rule.factors(item).gradient)
