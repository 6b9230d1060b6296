"""Which tensor groups may be behind a finding, likeliest first: each is a change that is tried before it is named."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence

from sigprop.checks.draws import Draw
from sigprop.checks.edits import edit, listed, setting
from sigprop.checks.gauges import logit_variance
from sigprop.checks.levels import levels
from sigprop.checks.observation import EPSILONS
from sigprop.checks.statistics import is_torch_default
from sigprop.checks.subject import Subject, is_norm_gain
from sigprop.checks.thresholds import limit
from sigprop.results import Edit, Finding, Init
from sigprop.sites import BLOCK_NUMBER
from sigprop.structure import Scores

Suspects = Callable[[Subject, Finding], Iterator[Edit]]


def suspects(subject: Subject, finding: Finding, others: Sequence[Finding] = ()) -> list[Edit]:
    """What the finding itself names, what others name that was found, then what its kind is known for."""
    named = [
        change
        for item in others
        if item is not finding and item.severity != "note"
        for change in item.edits
        if change.because
    ]
    listed_ones = SUSPECTS.get(finding.name)
    known = [] if subject.trained or listed_ones is None else [*listed_ones, unusual, numbers]
    found = [*finding.edits, *named, *(found for suspect in known for found in suspect(subject, finding))]
    return [change for place, change in enumerate(found) if change not in found[:place]]


RATE = re.compile(r"^(p|keep.*|.*drop.*|.*prob.*|rate)$")
FEW = 8
"""Fewer entries than this scale whole branches, not channels."""
GAINS, LARGEST_BIAS, LARGEST_TABLE = (0.05, 3.0), 2.0, 1.5
"""Where ordinary initializations lie: std times sqrt(fan_in) of matrices; means of biases; std of tables and tokens."""


def unusual(subject: Subject, finding: Finding) -> Iterator[Edit]:
    """Families whose scale departs from what is usual for their kind, the farthest first, at what is usual."""
    families: dict[str, list[tuple[float, Draw, Init]]] = {}
    for row in subject.draws:
        kind, init = _usual(subject, row)
        if init is not None:
            families.setdefault(row.family, []).append((kind, row, init))
    groups = sorted(families.values(), key=lambda found: -max(item[0] for item in found))
    groups += [[item for group in groups for item in group]] if len(groups) > 1 else []
    for found in groups:
        rows = [row for _, row, _ in found]
        inits = {row.name: init for _, row, init in found}
        size = f"std {rows[0].std:.3g}" if rows[0].std else f"value {rows[0].mean:.3g}"
        beside = (
            f", {rows[0].std * _fan(rows[0]) ** 0.5:.3g} / sqrt(fan_in)" if rows[0].is_matrix and rows[0].std else ""
        )
        verb = "starts" if len(rows) == 1 else "start"
        yield edit(
            f"initialize {listed(list(inits))} with {_spelt(found[0][2])}",
            inits,
            f"{_word(rows[0])} {listed(list(inits))} {verb} with {size}{beside}, far from what is usual.",
        )


def _word(row: Draw) -> str:
    if row.is_matrix:
        return "The table" if row.kind == "Embedding" else "The matrix"
    return "The gain" if is_norm_gain(row) else "The bias" if "bias" in row.name else "The parameter"


def _fan(row: Draw) -> int:
    return row.fan_in or row.shape[-1]


def _usual(subject: Subject, row: Draw) -> tuple[float, Init | None]:
    """How far a parameter is from the usual, in logarithms, and the usual initialization; None where it is near."""
    size = math.hypot(row.std, row.mean)
    if not math.isfinite(size) or size == 0:
        return 0.0, None
    table = row.kind == "Embedding" or (row.is_matrix and not row.fan_in and "token" in row.name)
    if not row.is_matrix or table:
        factor = len(row.shape) == 1 and row.total > 1 and "bias" not in row.name
        largest = LARGEST_TABLE if table or (row.std and not factor) else 1.0 if factor else LARGEST_BIAS
        centre = 1.0 if is_norm_gain(row) or (factor and row.mean > row.std) else 0.0
        off = abs(math.log(size)) if centre and abs(row.mean) > row.std else math.log(size / largest)
        init = (
            Init("constant", value=centre) if centre or not (table or len(row.shape) > 1) else Init("normal", std=0.02)
        )
        far = off > (0.0 if table else math.log(1.5))
        return off, init if far or (centre and row.std > abs(row.mean)) else None
    owner = subject.model.get_submodule(row.name.rpartition(".")[0])
    seen = subject.observed.multiplied if subject.measured is not None else {row.name}
    if row.name not in seen and not type(owner).__module__.startswith("torch."):
        return 0.0, None  # no matrix at work: logarithms of decays, tables of biases
    gain = size * _fan(row) ** 0.5
    off = max(math.log(gain / GAINS[1]), math.log(GAINS[0] / gain))
    return off, Init("normal", std=_fan(row) ** -0.5) if off > 0 else None


def numbers(subject: Subject, finding: Finding) -> Iterator[Edit]:
    """Numbers that modules of the model's own keep (scales, temperatures, slopes), where they are no usual factor."""
    groups: dict[tuple[str, str, float], list[str]] = {}
    for name, module in subject.model.named_modules():
        if type(module).__module__.startswith("torch."):
            continue
        for key, value in vars(module).items():
            if isinstance(value, float) and math.isfinite(value) and key not in EPSILONS:
                groups.setdefault((type(module).__name__, key, value), []).append(f"{name}.{key}".lstrip("."))
    for (_, key, value), names in groups.items():
        share = 0.0 < value < 1.0 and RATE.search(key)
        for other in _others(value) if not share else (1.0 - value,):
            kept = ": what is kept, in place of what is dropped, or the reverse" if share else ""
            because = f"{listed(names)} is {value:.4g}{kept}."
            yield setting(f"set {listed(names)} to {other:.4g}", dict.fromkeys(names, other), because)


def _others(value: float) -> tuple[float, ...]:
    """What a number that is no usual factor may have been meant to be."""
    if value < 0:
        return (-value,)
    return (1 / value, 1.0) if value > 1.0 else (1.0, 0.1) if 0 < value < 0.01 else ()


def scores(subject: Subject, finding: Finding) -> Iterator[Edit]:
    """The queries, divided so that scores have unit variance, or by the forgotten sqrt(d)."""
    structure = subject.structure
    if structure is None:
        return
    sizes = {row.name.removesuffix(".scores"): row.variance for row in subject.scores}
    large = [item for item in structure.scores if sizes.get(item.module, 0.0) > 1.0]
    yield from _score_factors(subject, large)
    found = [item for item in large if item.query]
    if not found:
        return
    largest = max(sizes[item.module] for item in found)
    factor = largest**-0.5
    first = found[0]
    code, what, because = "", "", ""
    if first.scale is not None and abs(first.scale - 1.0) < 1e-6 and largest / first.head_width < limit("scores_large"):
        factor = first.head_width**-0.5
        because = f"The scores of {first.module} are q . k times 1: 1/sqrt({first.head_width}) is missing."
    inits = {name: init for item in found for name, init in _queries(subject, item, factor).items()}
    gains = all(init.kind == "constant" for init in inits.values())
    if because and not gains:
        what = f"multiply the scores by 1/sqrt({first.head_width}) = {factor:.4g}"
        code = f"scale = {first.head_width} ** -0.5  # scores = (q @ k.transpose(-2, -1)) * scale"
    elif because:
        what = f"set the gain of the query norms, {listed(list(inits))}, to 1/sqrt({first.head_width})"
    else:
        what = f"divide the queries ({listed(list(inits))}) by {1 / factor:.3g}"
        because = f"Queries and keys of {first.module} are {1 / factor:.3g} times too large together."
    if inits and factor * limit("largest_edit") > 1:
        yield edit(what, inits, because, code)


def _score_factors(subject: Subject, large: list[Scores]) -> Iterator[Edit]:
    """The number that multiplies scores, where their modules keep it and it is not 1/sqrt(d)."""
    modules = dict(subject.model.named_modules())
    places = {}
    for item in large:
        for key, value in vars(modules[item.module]).items() if item.module in modules else ():
            if isinstance(value, float) and value == item.scale and abs(value * item.head_width**0.5 - 1) > 1e-3:
                places[f"{item.module}.{key}"] = item.head_width**-0.5
    if places:
        width, scale = large[0].head_width, large[0].scale
        because = f"The scores of {large[0].module} are q . k times {scale:.4g}: 1/sqrt({width}) is missing."
        yield setting(f"multiply the scores by 1/sqrt({width}): {listed(list(places))}", places, because)


def _queries(subject: Subject, item: Scores, factor: float) -> dict[str, Init]:
    """Changes that multiply queries by a factor; of a fused matrix queries and keys by its square root each."""
    structure = subject.structure
    assert structure is not None
    inits = {}
    for name in item.query:
        parameter, row = structure.parameters.get(name), _row(subject, name)
        if parameter is None or row is None:
            continue
        if row.std == 0 and len(row.shape) == 1:
            if item.shift or row.mean:
                inits[name] = Init("constant", value=(row.mean + item.shift) * factor - item.shift)
        elif parameter.parts:
            sizes = tuple(part.size for part in parameter.parts)
            shrunk = [row.std * (factor**0.5 if part.role == "query_key" else 1.0) for part in parameter.parts]
            inits[name] = Init(
                "blocks", axis=parameter.axis, sizes=sizes, parts=tuple(Init("normal", std=std) for std in shrunk)
            )
        elif item.shift == 0:
            inits[name] = Init("keep", value=factor)
    return inits


def uneven_ends(subject: Subject, finding: Finding) -> Iterator[Edit]:
    """Ends of branches whose std changes with depth, all set to that of the first."""
    families: dict[str, list[Draw]] = {}
    for name in subject.branch_ends:
        row = _row(subject, name)
        if row is not None and row.is_random and row.is_matrix:
            families.setdefault(row.family, []).append(row)
    inits: dict[str, Init] = {}
    for rows in families.values():
        rows.sort(key=lambda row: list(subject.draws.rows).index(row.name))
        if max(row.std for row in rows) > 1.5 * min(row.std for row in rows):
            least = min(row.std for row in rows)
            inits |= {row.name: Init("keep", value=least / row.std) for row in rows if row.std > 1.01 * least}
    if inits:
        first = subject.draws[next(iter(inits))]
        yield edit(
            f"give {listed(list(inits))} the std of the smallest in its family",
            inits,
            f"The std of {first.family} differs between blocks, and the branches with the larger one drive it.",
        )


def ends(subject: Subject, finding: Finding) -> Iterator[Edit]:
    """The last matrices of residual branches, divided so that all branches together add once the stream."""
    names = [name for name in subject.draws.rows if name in subject.branch_ends and subject.draws[name].is_random]
    streams: dict[int, list[float]] = {}
    for branch in subject.branches:
        if math.isfinite(branch.share) and (branch.normed or not branch.first):
            streams.setdefault(branch.stream, []).append(branch.share)
    total = max(map(sum, streams.values()), default=0.0)
    if names and total > 1.0:
        factor = total**-0.5
        yield edit(
            f"multiply the ends of the residual branches ({listed(names)}) by {factor:.3g}",
            {name: Init("keep", value=factor) for name in names},
            f"The branches add {total:.3g} times their skips in all.",
        )


def silent_ends(subject: Subject, finding: Finding) -> Iterator[Edit]:
    """The last matrices of branches that add nothing, at a std that makes each add a thousandth."""
    quiet = {
        branch.site.removesuffix("[0]"): branch.share
        for branch in subject.branches
        if 0 < branch.share < limit("drowned_branch")
    }
    junctions = subject.structure.junctions if subject.structure is not None else []
    inits = {}
    for junction in junctions:
        for name in junction.weights if junction.exit in quiet else ():
            if name in subject.draws.rows and subject.draws[name].is_random:
                inits[name] = Init("keep", value=(1e-3 / quiet[junction.exit]) ** 0.5)
    if inits and max(init.value for init in inits.values()) <= limit("largest_edit"):
        worst = min(quiet.values())
        yield edit(
            f"enlarge {listed(list(inits))} until they add a thousandth of the stream",
            inits,
            f"The std of {listed(list(inits))} leaves {worst:.2g} of the stream's variance.",
        )


def rezero(subject: Subject, finding: Finding) -> Iterator[Edit]:
    """Constants at the ends of branches (ReZero, LayerScale) that start at one and more, at zero."""
    few = [row for row in subject.draws if len(row.shape) < 2 and row.total < FEW and BLOCK_NUMBER.search(row.name)]
    rows = [row for row in subject.draws if row.name in subject.branch_ends or row in few]
    rows = [row for row in rows if row.std == 0 and row.mean >= 0.5]
    rows = [row for row in rows if not is_norm_gain(row) and "bias" not in row.name.rpartition(".")[2]]
    if rows:
        names = [row.name for row in rows]
        yield edit(
            f"start the scales of the branches, {listed(names)}, at 0",
            {name: Init("constant", value=0.0) for name in names},
            f"The scales of the branches, {listed(names)}, start at {rows[0].mean:.3g}: every branch is added in full.",
        )


def chain(subject: Subject, finding: Finding) -> Iterator[Edit]:
    """All matrices of a chain without skips, multiplied by one factor."""
    column = "variance" if finding.name == "stream_growth" else "grad_variance"
    for stream in subject.streams:
        values = [value for value in stream.values(subject.profile, column) if math.isfinite(value) and value > 0]
        names = [f"{name}.weight" for name in stream.names if _row(subject, f"{name}.weight") is not None]
        if stream.residual or len(values) < 3 or len(names) < 3 or (column == "variance" and not values[0]):
            continue
        first, last = (values[0], values[-1]) if column == "variance" else (values[-1], values[0])
        growth = (last / first) ** (1 / (len(values) - 1))
        rows = [subject.draws[name] for name in names]
        own = rows[0].std * rows[0].fan_in ** 0.5
        default = ", torch's default," if all(map(is_torch_default, rows)) else ""
        told = f"Each layer multiplies the {'variance' if column == 'variance' else 'squared gradient'} by {growth:.3g}"
        for gain in (own * growth**-0.5, 1.0, 2**0.5):
            if own and 0.02 < abs(math.log(gain / own)) < math.log(limit("largest_edit")):
                yield edit(
                    f"initialize the matrices of the chain ({listed(names)}) with std {gain:.3g} / sqrt(fan_in)",
                    {row.name: Init("normal", std=gain / row.fan_in**0.5) for row in rows if row.fan_in},
                    f"{told}: without skips the std {own:.3g} / sqrt(fan_in){default} is not the critical one.",
                )


def levelled(subject: Subject, finding: Finding) -> Iterator[Edit]:
    """Matrices whose outputs are far from unit scale, each brought there behind the others; a family by one factor."""
    if subject.measured is None or subject.evaluation is None:
        return
    families: dict[str, list[tuple[str, float]]] = {}
    for name, factor in levels(subject.model, subject.batch, subject.observed.differentiates).items():
        if name in subject.draws.rows:
            families.setdefault(subject.draws[name].family, []).append((name, factor))
    inits: dict[str, Init] = {}
    for found in families.values():
        factor = math.exp(sum(math.log(item) for _, item in found) / len(found))
        if factor != 1.0:
            inits |= {name: Init("keep", value=factor) for name, _ in found}
    if inits:
        worst = max(inits, key=lambda name: abs(math.log(inits[name].value)))
        size = 1 / inits[worst].value
        told = f"{size:.3g} times too large" if size > 1 else f"{1 / size:.3g} times too small"
        yield edit(
            f"rescale the initialization of {listed(list(inits))} to unit output: the std is to be 1 / sqrt(fan_in), "
            "with the size that each sums over as its fan-in",
            inits,
            f"What {worst} makes is {told}: its std does not fit the number of inputs that it sums over (its fan-in).",
        )


def embedding(subject: Subject, finding: Finding) -> Iterator[Edit]:
    """The tables that the stream starts from, at unit std."""
    structure = subject.structure
    names = (
        []
        if structure is None
        else [
            item.name
            for item in structure
            if item.role == "embedding" and item.junction is None and not item.tied and item.name in subject.draws.rows
        ]
    )
    rows = [subject.draws[name] for name in names if subject.draws[name].is_random]
    if rows and abs(math.log(rows[0].std)) > 0.5:
        yield edit(
            f"initialize {listed([row.name for row in rows])} with std 1",
            {row.name: Init("normal", std=1.0) for row in rows},
            f"The stream starts from {rows[0].name}, a table of std {rows[0].std:.3g}.",
        )


def readout(subject: Subject, finding: Finding) -> Iterator[Edit]:
    """The readout, at a std that gives logits of unit variance; 0.02 first where it is tied to a table."""
    item, profile = subject.readout, subject.profile
    row = None if item is None else _row(subject, item.name)
    if item is None or row is None or profile is None or not row.is_random:
        return
    variance = logit_variance(subject, profile)
    if math.isfinite(variance) and variance > limit("read_by_readout") * max(row.std**2 * _fan(row), 0.01):
        return  # what it reads is large, not the readout
    stds = [0.02] if item.tied else []
    stds += [row.std * variance**-0.5] if math.isfinite(variance) and variance > 0 else []
    table = "the table, which is also the readout" if item.tied else "the readout"
    for std in stds:
        if std < row.std:
            yield edit(
                f"initialize {table}, {item.name}, with std {std:.3g}",
                {item.name: Init("normal", std=std)},
                f"The std of {item.name}, {row.std:.3g}, gives logits of variance {variance:.3g}."
                if math.isfinite(variance)
                else f"The std of {item.name} is {row.std:.3g}.",
            )


TEMPERATURE = math.log(1 / 0.07)


def scalars(subject: Subject, finding: Finding) -> Iterator[Edit]:
    """A single number that multiplies the logits as an exponential: at CLIP's ln(1 / 0.07)."""
    for row in subject.draws:
        if row.total == 1 and abs(row.mean) > TEMPERATURE + 1.0:
            yield edit(
                f"start {row.name} at ln(1 / 0.07)",
                {row.name: Init("constant", value=TEMPERATURE)},
                f"{row.name} starts at {row.mean:.3g}, a factor of e^{row.mean:.3g} = {math.exp(row.mean):.3g}.",
            )


def zeros(subject: Subject, finding: Finding) -> Iterator[Edit]:
    """Parameters that are zero and no biases, by family or by a name of their own (`lora_a`): gains at one, matrices at
    1 / sqrt(fan_in)."""
    families: dict[str, list[Draw]] = {}
    for row in subject.draws:
        if row.std == 0 and row.mean == 0 and "bias" not in row.name.rpartition(".")[2]:
            leaf = row.name.rpartition(".")[2]
            families.setdefault(row.family if leaf == "weight" else leaf, []).append(row)
    everything = [row for rows in families.values() for row in rows]
    gains = [row for row in everything if is_norm_gain(row)]
    together = [rows for rows in (gains, everything) if len({row.family for row in rows}) > 1]
    for rows in [*list(families.values())[:4], *together]:
        inits = {row.name: started(row) for row in rows}
        yield edit(
            f"initialize {listed(list(inits))} with {_spelt(started(rows[0]))}",
            inits,
            f"{listed(list(inits))} {'is' if len(rows) == 1 else 'are'} zero.",
        )


def started(row: Draw) -> Init:
    """What a parameter of zeros would start at if it were no zero."""
    if not row.is_matrix:
        return Init("constant", value=1.0)
    return Init("normal", std=(row.fan_in or row.shape[-1]) ** -0.5)


def _spelt(init: Init) -> str:
    return f"{init.value:g}" if init.kind == "constant" else f"std {init.std:.3g}"


def own_values(subject: Subject, finding: Finding) -> Iterator[Edit]:
    """Parameters without a gradient whose own values may saturate what reads them, at zero."""
    rows = [subject.draws[name] for name in finding.parameters if name in subject.draws.rows]
    rows = [row for row in rows if row.mean != 0 and abs(row.mean) > 2 * row.std]
    families: dict[str, list[Draw]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(row)
    for members in families.values():
        names = [row.name for row in members]
        yield edit(
            f"start {listed(names)} nearer to zero",
            {name: Init("constant", value=0.0) for name in names},
            f"The values of {listed(names)}, {members[0].mean:.3g} on average, saturate what reads them: at zero "
            "they get a gradient.",
        )


def biases(subject: Subject, finding: Finding) -> Iterator[Edit]:
    """Biases far from zero, at zero."""
    rows = [row for row in subject.draws if "bias" in row.name and abs(row.mean) > 2.0 and len(row.shape) == 1]
    if rows:
        names = [row.name for row in rows]
        yield edit(
            f"initialize {listed(names)} with 0",
            {name: Init("constant", value=0.0) for name in names},
            f"The mean of {names[0]} is {rows[0].mean:.3g}.",
        )


def _row(subject: Subject, name: str) -> Draw | None:
    return subject.draws.rows.get(name)


SUSPECTS: dict[str, tuple[Suspects, ...]] = {
    "attention_saturated": (scores,),
    "attention_uniform": (embedding,),
    "gradient_explodes": (rezero, scores, uneven_ends, ends, chain, embedding, levelled),
    "gradient_vanishes": (biases, chain, ends, embedding, levelled),
    "criticality": (chain, levelled),
    "stream_growth": (rezero, uneven_ends, ends, embedding, chain, levelled),
    "steps_grow": (),
    "branch_share": (biases, embedding, silent_ends, ends),
    "embedding_scale": (embedding,),
    "rank_collapse": (zeros, ends, embedding, biases),
    "sensitivity": (ends,),
    "initial_loss": (scalars, readout, biases, levelled),
    "norm_epsilon": (zeros,),
    "exponent": (scalars,),
    "non_finite_signal": (),
    "dropout": (numbers,),
    "tied_readout": (readout,),
    "activations": (zeros, biases),
    "no_gradient": (zeros, own_values, biases),
    "ignores_input": (zeros, biases, levelled),
    "router_collapse": (biases,),
    "gates_shut": (biases,),
    "equal_positions": (zeros, ends, chain, embedding, levelled),
}
