"""How the pass is wired: see `sigprop.checks.wiring`."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.registry import check, told
from sigprop.checks.subject import Subject
from sigprop.results.report import Finding

FEWEST = 3


@check("mixed_axes", "influence", "reshapes that a transpose was meant for, and linear maps in a row")
def mixed_axes(subject: Subject) -> Iterator[Finding]:
    for site, before, after in subject.wiring.turned[:1]:
        yield told(
            "problem",
            f"a reshape in {site} makes {after} of {before}: it mixes axes that a transpose would exchange",
            "A reshape (view) keeps the order of the numbers: what belonged to one position or channel is spread over "
            "many, so that positions and channels are mixed.",
            "transpose (permute) the axes, and reshape after it: flatten(2).transpose(1, 2), or "
            "view(batch, length, heads, -1).transpose(1, 2)",
            [item[0] for item in subject.wiring.turned],
        )
    for first, second in subject.wiring.unbroken[:1]:
        yield told(
            "warning",
            f"nothing stands between {first} and {second}: both are linear, and so are they together",
            f"What {first} makes goes into {second} alone, as it is: the two are one matrix of no higher rank. The "
            "activation (nonlinearity) between them is missing.",
            f"put an activation (ReLU, GELU) between {first} and {second}, or leave one of them out",
            [site for pair in subject.wiring.unbroken for site in pair],
        )
    for site, name in list(subject.wiring.plain.items())[:1]:
        yield told(
            "warning",
            f"the activation in {site} does nothing: `{name}` gives back what it reads, negative numbers too",
            "Its slope is one on both sides (a negative slope of 1, bounds out of reach): without a nonlinearity the "
            "layers around it are one linear map.",
            "give it a slope below one for negative numbers (0.01 to 0.25), or another activation",
            subject.wiring.plain,
        )


@check("missing_skip", "influence", "attention that stands in the stream, beside branches that have a skip")
def missing_skip(subject: Subject) -> Iterator[Finding]:
    structure = subject.structure
    if structure is None or structure.routers or len(structure.junctions) < FEWEST:
        return
    inside = {name for item in structure.junctions for name in item.inside}
    outside = [item for item in structure.scores if item.query and not inside & set(item.query)]
    if len(outside) >= FEWEST and 2 * len(outside) > len(structure.scores):
        names = [item.module for item in outside]
        yield told(
            "warning",
            f"{names[0]} has no skip around it, nor have {len(names) - 1} more, while other branches have one",
            "Its output replaces the stream: what a token was is averaged away, tokens become identical within a few "
            "blocks, and the gradient passes every attention (Dong et al. 2021).",
            f"add what it reads: x = x + {names[0].rpartition('.')[2]}(norm(x))",
            names,
        )


@check("flat_derivative", "influence", "derivatives taken in the forward pass that are zero, or have no graph")
def flat_derivative(subject: Subject) -> Iterator[Finding]:
    for site in subject.wiring.flat[:1]:
        yield told(
            "problem",
            f"a derivative that {site} takes (torch.autograd.grad) is exactly zero everywhere",
            "What it differentiates is flat, or piecewise linear (ReLU), so that its second derivative is zero: the "
            "term that it makes has no gradient and is not learned.",
            "use a smooth activation (tanh, sin, SiLU, softplus), or look at what the derivative is taken of",
            subject.wiring.flat,
        )

    for site in subject.wiring.ungraded[:1]:
        yield told(
            "warning",
            f"a derivative that {site} takes (torch.autograd.grad) has no gradient of its own",
            "It is computed without `create_graph`, so that it is a plain number: a penalty or force made of it "
            "moves no parameter.",
            "torch.autograd.grad(..., create_graph=True) in training",
            subject.wiring.ungraded,
        )


@check("drowned_part", "influence", "parts that are joined at scales far apart")
def drowned_part(subject: Subject) -> Iterator[Finding]:
    for site, (small, large, ratio) in list(subject.wiring.drowned.items())[:1]:
        yield told(
            "warning",
            f"what {large} makes is {ratio:.3g} times as large as what {small} makes, and both are joined in {site}",
            f"Concatenated or added at scales so far apart, the part of {small} drowns: what reads both hardly depends "
            "on it, and learns it last.",
            f"bring both to one scale: normalize each of them (LayerNorm), or scale {small} up or {large} down",
            [small, large, *subject.wiring.drowned],
        )


@check("signed_divisor", "influence", "divisions by numbers that pass zero")
def signed_divisor(subject: Subject) -> Iterator[Finding]:
    for site, share in list(subject.wiring.signed.items())[:1]:
        yield told(
            "warning",
            f"a denominator made from the output of {site} has both signs ({share:.0%} of the rarer one)",
            "It passes zero: some quotients are as large as it happens, change their sign with a small change of the "
            "weights, and gradients are as large. What normalizes a sum must be positive.",
            "make the denominator positive: positive features (elu + 1, exp, softmax), a norm, or abs() + eps",
            list(subject.wiring.signed),
        )


@check(
    "lost_modules", "influence", "modules whose output is dropped, that are not registered, or stand in a list again"
)
def lost_modules(subject: Subject) -> Iterator[Finding]:
    found = subject.wiring
    rows = {} if subject.measured is None else {row.name: row.grad_second_moment for row in subject.measured.parameters}
    for name in found.dropped:
        own = [key for key, value in rows.items() if key.startswith(f"{name}.")]
        if own and all(math.isnan(rows[key]) for key in own):
            yield told(
                "warning",
                f"{name} runs, and nothing reads what it makes",
                "Its output is neither used by a later call nor part of the model's output: it is computed and "
                f"dropped, and its {len(own)} parameters get no gradient.",
                f"use the output of {name} (add it to the stream, hand it on), or leave the module out",
                [name],
                own,
            )
    for site, shape in list(found.strangers.items())[:1]:
        yield told(
            "problem",
            f"{site} uses parameters that the model does not know, of shape {shape} first",
            "They are not among `model.parameters()`: an optimizer never trains them, and `state_dict`, `to` and "
            "`apply` pass them by. Modules in a plain list or dict, or made in `forward`, are not registered, nor is a "
            "tensor with requires_grad, or what is computed of a parameter.",
            "register them: nn.ModuleList (nn.ModuleDict, nn.ParameterList) in place of a list, made in `__init__`; "
            "nn.Parameter(...) around the last value of a tensor",
            list(found.strangers),
        )
    for names in found.reused[:1]:
        last, owner = names[-1], names[0].rpartition(".")[0]
        yield told(
            "warning",
            f"{names[0]} to {last} are one and the same module, shared by {len(names)} places",
            "A list that is multiplied (`[layer] * n`) holds one object again and again: all its places share their "
            "parameters, so that the model has one layer's parameters, and each call adds the same again.",
            f"make each entry its own: model.{owner} = nn.ModuleList([Layer(...) for _ in range({len(names)})]), or "
            "`copy.deepcopy` and a new initialization for each; where sharing is meant, call one module in a loop",
            names,
        )


@check("unread_parts", "influence", "parts of matrices and of inputs that nothing depends on")
def unread_parts(subject: Subject) -> Iterator[Finding]:
    """Behind a zero that learns there is no gradient for a while; the readout may hide classes on purpose."""
    waits = any(row.std == 0 and row.mean == 0 and "bias" not in row.name for row in subject.draws)
    ends = {subject.readout.name} if subject.readout is not None else set()
    rows = {name: item for name, item in subject.wiring.idle_rows.items() if name not in ends and not waits}
    for name, (first, last, count) in list(rows.items())[:1]:
        yield told(
            "warning",
            f"rows {first} to {last} of {count} of {name} get a gradient of exactly zero",
            "The other rows have one. What these make is not read (another part of a fused matrix is used in its "
            "place), or whatever reads it is saturated.",
            f"look at how the output of {name.rpartition('.')[0] or name} is split (chunk, split), and that each part "
            "is used",
            parameters=list(rows),
        )
    cut = next(iter(subject.wiring.silent.items()), None)
    for name, share in list(subject.wiring.unread.items())[: cut is None]:
        yield told(
            "warning",
            f"{share:.0%} of the places of the input{f' {name}' if name else ''} are never read",
            "No output depends on them in any example: a stride skips them, a slice leaves them out, or what they "
            "made is dropped.",
            "look at strides, slices and the place at which the output is read",
        )

    for site, name in list(subject.wiring.silent.items())[: bool(subject.wiring.unread)]:
        share = max(subject.wiring.unread.values())
        yield told(
            "warning",
            f"no gradient reaches {share:.0%} of the places of the input: `{name}` in {site} runs under no_grad",
            "What is computed of them with trained parameters is cut off from the loss: it cannot be learned.",
            "compute it with gradients, or detach between batches, not between the steps of one",
            subject.wiring.silent,
        )


@check("codes", "influence", "codes of positions or steps that are nearly the same, or equal by rounding")
def codes(subject: Subject) -> Iterator[Finding]:
    for site, kind in list(subject.wiring.rounded.items())[:1]:
        name = str(kind).removeprefix("torch.")
        yield told(
            "warning",
            f"whole numbers (positions, steps) become equal in {site}: they are rounded to {name}",
            f"{name} tells whole numbers apart up to {256 if 'bf' in name else 2048} only: beyond it neighbours share "
            "one value, and with it one code.",
            "count in float32 (dtype=torch.float32, or `.float()`), and round the codes afterwards",
            list(subject.wiring.rounded),
        )
    for site, span in list(subject.wiring.slow.items())[:1]:
        yield told(
            "warning",
            f"the sines in {site} are nearly the same for all steps (positions, times): they read numbers that span "
            f"{span:.2g}",
            "Even the fastest turns by less than a quarter: the codes of different steps hardly differ, and what is "
            "told by them is weak.",
            "scale the steps (times 1000, where they lie between 0 and 1), or raise the frequencies",
            list(subject.wiring.slow),
        )
    for site, span in list(subject.wiring.fast.items())[:1]:
        yield told(
            "warning",
            f"the sines in {site} turn by {span:.3g} between neighbouring inputs, even the slowest of them",
            "Codes of inputs that are close have nothing in common: what is learned at one says nothing about the "
            "next, and the network can only memorize.",
            "divide the frequencies (the std of the matrix before the sines): the slowest turns by less than half",
            list(subject.wiring.fast),
        )


@check("summed_term", "influence", "a term of the loss that is a sum, beside one that is a mean")
def summed_term(subject: Subject) -> Iterator[Finding]:
    for site, (first, second, count) in list(subject.wiring.summed.items())[:1]:
        large, small = max(first, second), min(first, second)
        yield told(
            "warning",
            f"one term of the loss in {site} is a sum over {count} numbers, another is not: {large:.3g}, {small:.3g}",
            f"The smaller is drowned by a factor of {large / small:.3g}: it is hardly learned until the larger has "
            "vanished, and their balance changes with the sizes of batch and output.",
            "take both as means, or both as sums over one example (mean over the batch), and weigh them then",
            list(subject.wiring.summed),
        )
