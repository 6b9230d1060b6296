"""Which tensor groups may be behind a finding, likeliest first: each is a change that is tried before it is named."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from sigprop.checks.draws import Draw
from sigprop.checks.edits import edit, listed
from sigprop.checks.gauges import logit_variance
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results import Edit, Finding, Init
from sigprop.structure import Scores

Suspects = Callable[[Subject, Finding], Iterator[Edit]]


def suspects(subject: Subject, finding: Finding, others: Sequence[Finding] = ()) -> list[Edit]:
    """What the finding itself names, what others name that was found, then what its kind is known for."""
    named = [change for item in others if item is not finding for change in item.edits if change.because]
    known = [] if subject.trained else SUSPECTS.get(finding.name, ())
    return [*finding.edits, *named, *(found for suspect in known for found in suspect(subject, finding))]


def scores(subject: Subject, finding: Finding) -> Iterator[Edit]:
    """The queries, divided so that scores have unit variance, or by the forgotten sqrt(d)."""
    structure = subject.structure
    if structure is None:
        return
    sizes = {row.name.removesuffix(".scores"): row.variance for row in subject.scores}
    found = [item for item in structure.scores if sizes.get(item.module, 0.0) > 1.0 and item.query]
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
    if inits:
        yield edit(what, inits, because, code)


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
            inits[name] = Init("blocks", axis=parameter.axis, sizes=sizes,
                               parts=tuple(Init("normal", std=std) for std in shrunk))  # fmt: skip
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
    quiet = {branch.site.removesuffix("[0]"): branch.share for branch in subject.branches
             if 0 < branch.share < limit("drowned_branch")}  # fmt: skip
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
        told = f"Each layer multiplies the {'variance' if column == 'variance' else 'squared gradient'} by {growth:.3g}"
        for gain in (own * growth**-0.5, 1.0, 2**0.5):
            if own and 0.02 < abs(math.log(gain / own)) < math.log(limit("largest_edit")):
                yield edit(
                    f"initialize the matrices of the chain ({listed(names)}) with std {gain:.3g} / sqrt(fan_in)",
                    {row.name: Init("normal", std=gain / row.fan_in**0.5) for row in rows if row.fan_in},
                    f"{told}: without skips the std {own:.3g} / sqrt(fan_in) is not the critical one.",
                )


def embedding(subject: Subject, finding: Finding) -> Iterator[Edit]:
    """The tables that the stream starts from, at unit std."""
    structure = subject.structure
    names = [] if structure is None else [
        item.name for item in structure
        if item.role == "embedding" and item.junction is None and not item.tied and item.name in subject.draws.rows
    ]  # fmt: skip
    rows = [subject.draws[name] for name in names if subject.draws[name].is_random]
    if rows and abs(math.log(rows[0].std)) > 0.5:
        yield edit(
            f"initialize {listed([row.name for row in rows])} with std 1",
            {row.name: Init("normal", std=1.0) for row in rows},
            f"The stream starts from a table of std {rows[0].std:.3g}.",
        )


def readout(subject: Subject, finding: Finding) -> Iterator[Edit]:
    """The readout, at a std that gives logits of unit variance; 0.02 first where it is tied to a table."""
    item, profile = subject.readout, subject.profile
    row = None if item is None else _row(subject, item.name)
    if item is None or row is None or profile is None or not row.is_random:
        return
    variance = logit_variance(subject, profile)
    stds = [0.02] if item.tied else []
    stds += [row.std * variance**-0.5] if math.isfinite(variance) and variance > 0 else []
    table = "the table, which is also the readout" if item.tied else "the readout"
    for std in stds:
        if std < row.std:
            yield edit(
                f"initialize {table}, {item.name}, with std {std:.3g}",
                {item.name: Init("normal", std=std)},
                f"The std of {item.name}, {row.std:.3g}, gives logits of variance {variance:.3g}."
                if math.isfinite(variance) else f"The std of {item.name} is {row.std:.3g}.",
            )  # fmt: skip


TEMPERATURE = math.log(1 / 0.07)


def scalars(subject: Subject, finding: Finding) -> Iterator[Edit]:
    """A single number that multiplies the logits as an exponential: at CLIP's ln(1 / 0.07)."""
    for row in subject.draws:
        if row.total == 1 and row.mean > TEMPERATURE + 1.0:
            yield edit(
                f"start {row.name} at ln(1 / 0.07)",
                {row.name: Init("constant", value=TEMPERATURE)},
                f"{row.name} starts at {row.mean:.3g}, a factor of e^{row.mean:.3g} = {math.exp(row.mean):.3g}.",
            )


def zeros(subject: Subject, finding: Finding) -> Iterator[Edit]:
    """Families of parameters that are zero and no biases: gains at one, matrices at 1 / sqrt(fan_in)."""
    families: dict[str, list[Draw]] = {}
    for row in subject.draws:
        if row.std == 0 and row.mean == 0 and "bias" not in row.name.rpartition(".")[2]:
            families.setdefault(row.family, []).append(row)
    for rows in families.values():
        inits = {row.name: started(row) for row in rows}
        yield edit(f"initialize {listed(list(inits))} with {_spelt(started(rows[0]))}", inits,
                   f"{listed(list(inits))} {'is' if len(rows) == 1 else 'are'} zero.")  # fmt: skip


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
    "gradient_explodes": (scores, uneven_ends, ends, chain, embedding),
    "gradient_vanishes": (biases, chain, ends, embedding),
    "criticality": (chain,),
    "stream_growth": (uneven_ends, ends, embedding, chain),
    "branch_share": (embedding, silent_ends, ends),
    "embedding_scale": (embedding,),
    "rank_collapse": (ends, embedding, biases),
    "sensitivity": (ends,),
    "initial_loss": (scalars, readout),
    "tied_readout": (readout,),
    "activations": (zeros, biases),
    "no_gradient": (zeros, own_values, biases),
    "ignores_input": (zeros, biases),
    "router_collapse": (biases,),
    "gates_shut": (biases,),
    "equal_positions": (ends, chain, embedding),
}
