"""What the torch functions of one forward pass are given: a mode that looks at each as it is called."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from sigprop.checks.calls import Activity, Calls, Gate, LossCall, MadeBy, NormInput, Routing, Softmax
from sigprop.checks.thresholds import limit

BOUND_SHARE = 0.05
PIECE = 1 << 20
"""Logits that are copied to float64 at once."""
FEWEST = 16
"""Positions below which a unit that is always zero says nothing."""
LIKELY = 0.1
"""Of the logarithm of the sum of probabilities: label smoothing and rounding leave 1e-3."""
BOUNDS = {"sigmoid": (0.0, 1.0), "softmax": (0.0, 1.0), "tanh": (-1.0, 1.0), "relu": (0.0, math.inf)}
MASKED = 80.0
"""Below the largest logit: what is farther down is masked, or might as well be (exp(-80) = 2e-35)."""


class CallWatch(TorchFunctionMode):
    """`current`: the names of the modules that run, innermost last; `batch`: the tensors that the model is given, and
    `inputs` those of them that are no targets."""

    def __init__(
        self, current: list[str], found: Calls, batch: Iterable[Tensor], inputs: Iterable[Tensor], model: nn.Module
    ):
        super().__init__()
        fixed = model.buffers()
        self._made = {id(item): (item, (name,)) for name, item in model.named_parameters()}
        self._sources: Any = WeakTensorKeyDictionary()
        self._squashed: Any = WeakTensorKeyDictionary()
        self._errors: Any = WeakTensorKeyDictionary()
        self._across: Any = WeakTensorKeyDictionary()
        self.current, self.found = current, found
        self.logits: Tensor | None = None
        self.judged: list[Tensor] = []
        self._ids = [item for item in inputs if not item.is_floating_point() and item.dim() == 2]
        self._known = {id(item): (item, True) for item in batch} | {id(item): (item, False) for item in fixed}
        self._entering: dict[int, tuple[str, Tensor]] = {}
        self._looked_up: dict[int, tuple[str, Tensor]] = {}

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        name = self.current[-1] or "(model)"
        self._follow_batch(args, output)
        self._follow_sources(name, func, args, output)
        if isinstance(output, Tensor) and output in self._sources and output.numel() >= FEWEST:
            key = (name, func.__name__.strip("_"), output.shape)
            self.found.steps.setdefault(key, []).append(float(output.detach().square().mean()))
        self._follow_errors(name, func, args, kwargs, output)
        for note in NOTES.get(func, ()):
            note(self, name, func, args, kwargs, output)
        return output

    def _follow_batch(self, args: Any, output: Any) -> None:
        """What is computed without parameters, and whether of the batch."""
        if not isinstance(output, Tensor):
            return
        known = [self._known.get(id(item)) for item in args if isinstance(item, Tensor)]
        if None not in known:
            self._known[id(output)] = (output, any(item[1] for item in known if item))

    def _follow_sources(self, name: str, func: Any, args: Any, output: Any) -> None:
        """Which matrix made a tensor, and what is computed from parameters alone."""
        given = [item for part in args for item in (part if isinstance(part, (tuple, list)) else [part])]
        given = [item for item in given if isinstance(item, Tensor) and item.is_floating_point()]
        outputs = [
            item
            for item in (output if isinstance(output, (tuple, list)) else [output])
            if isinstance(item, Tensor) and item.is_floating_point()
        ]
        if func in PRODUCTS and given and given[0] in self._across:
            self.found.across.append(self._across[given[0]])
        made = [self._made[id(item)][1] for item in given if id(item) in self._made]
        of_batch = any(self._known.get(id(item), (None, False))[1] for item in given)
        product = func in PRODUCTS or func is F.embedding or (of_batch and len(given) > 1)
        source: MadeBy | None = None
        if (
            given
            and not of_batch
            and func not in (F.embedding, *LAYERS)
            and len(made) == sum(id(item) not in self._known for item in given) > 0
        ):
            names = tuple(dict.fromkeys(name for names in made for name in names))
            self._made |= {id(item): (item, names) for item in outputs}
        elif product and made:
            source = MadeBy(name)
            self._note_weight(name, func, given)
        else:
            found = [(item, self._sources[item]) for item in given if item in self._sources]
            if len(found) > 1 and (product or func in FACTORED):
                factors = tuple((before.site, float(item.detach().double().square().mean())) for item, before in found)
                source = MadeBy(name, factors[:2])
            elif found:
                source = found[0][1]
        for item in outputs if source is not None else ():
            self._sources[item] = source

    def _follow_errors(self, name: str, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        """Losses by hand: a difference of what parameters made and what none did, and all that is made of it, beside
        the same of an output of zeros."""
        given = [item for item in args if isinstance(item, Tensor)]
        if not isinstance(output, Tensor) or not output.is_floating_point() or not given:
            return
        learned = [item for item in given if item in self._sources or id(item) in self._made]
        errors = [item for item in given if item in self._errors]
        if func in DIFFERENCES and len(given) == 2 and len(learned) == 1 and learned[0] in self._sources and not errors:
            made, wanted = learned[0], given[given[0] is learned[0]]
            before = (made, wanted, made.new_zeros(made.shape))
        elif errors and all(item is errors[0] for item in [*errors, *learned]):
            made, wanted, _ = before = self._errors[errors[0]]
        else:
            return
        old = errors[0] if errors else made
        zero = func(*(before[2] if item is old else item for item in args), **kwargs)
        self._errors[output] = (made, wanted, zero)
        if errors and errors[0].dim() and not output.dim():
            self._regressed(name, "regression", made, wanted, float(output), float(zero))

    def source_of(self, item: Tensor | None) -> MadeBy | None:
        return None if item is None else self._sources.get(item)

    def _note_weight(self, name: str, func: Any, given: list[Tensor]) -> None:
        """A matrix that is made of several parameters: its gain on what it multiplies."""
        for place, item in enumerate(given):
            names = self._made.get(id(item), (item, ()))[1]
            self.found.multiplied |= set(names)
            if len(names) > 1 and item.dim() > 1 and (place == 1 or func not in LAYERS):
                fan = item[0].numel() if func in LAYERS else item.shape[-2 if place else -1]
                gain = float(item.detach().double().square().mean() * fan) ** 0.5
                if gain > self.found.weights.get(name, (0.0, ()))[0]:
                    self.found.weights[name] = (gain, names)

    def looked_up(self, name: str, func: Any, args: Any, kwargs: Any, output: Tensor) -> None:
        self._looked_up[id(output)] = (name, output)

    def multiplied(self, name: str, func: Any, args: Any, kwargs: Any, output: Tensor) -> None:
        """What is looked up stays that under a number."""
        found = [self._looked_up[id(item)] for item in args if id(item) in self._looked_up]
        if found and isinstance(output, Tensor):
            self._looked_up[id(output)] = (found[0][0], output)

    def added(self, name: str, func: Any, args: Any, kwargs: Any, output: Tensor) -> None:
        tables = [self._looked_up[id(item)] for item in args[:2] if id(item) in self._looked_up]
        other = [x for x in args[:2] if id(x) in self._made or not self._known.get(id(x), (None, True))[1]]
        if len(tables) == len(other) == 1 and other[0].dim() > 1 and other[0].shape[-1] == output.shape[-1]:
            learned = self._made.get(id(other[0]), (None, ()))[1]
            self.found.positions[tables[0][0]] = (_spread(tables[0][1]), _spread(other[0]), learned)

    def rectified(self, name: str, func: Any, args: Any, kwargs: Any, output: Tensor) -> None:
        silent = func is not torch.relu_ and not bool(args[0].any())
        note_unit(self.found, name, Activity(_dead(output), silent))

    def bounded(self, name: str, func: Any, args: Any, kwargs: Any, output: Tensor) -> None:
        if output.numel() >= FEWEST or (args[0].is_leaf and args[0].requires_grad):
            share, maker = float((output.abs() > 1.0 - BOUND_SHARE).double().mean()), self._sources.get(args[0])
            reads = float(args[0].detach().double().square().mean()) ** 0.5
            note_unit(self.found, name, Activity(0.0, False, share, reads, maker.site if maker is not None else ""))

    def gated(self, name: str, func: Any, args: Any, kwargs: Any, output: Tensor) -> None:
        if output.numel() >= FEWEST:
            note_gate(self.found, name, output)

    def dropped(self, name: str, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        share = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        self.found.dropouts[name] = max(self.found.dropouts.get(name, 0.0), float(share))

    def chosen(self, name: str, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        scores, chosen = args[0], output[1] if isinstance(output, tuple) else output
        if not isinstance(scores, Tensor) or not scores.dim():
            return
        options, count = scores.shape[-1], chosen.numel() * scores.shape[-1] // max(scores.numel(), 1)
        positions = scores.numel() // max(options, 1)
        if count < 1 or 2 * count > options or positions < 2 * options or chosen.is_floating_point():
            return
        load = torch.bincount(chosen.flatten().clamp(0, options - 1), minlength=options).double().sort(descending=True)
        busy = int((load.values.cumsum(0) < 0.9 * chosen.numel()).sum()) + 1
        self.found.routings[name] = Routing(options, count, positions, busy)

    def normed(self, name: str, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        place, spread = NORMS[func]
        epsilon = kwargs.get("eps", args[place] if len(args) > place else None)
        entered = self._entering.pop(id(args[0]), None)
        if entered is not None:
            self.found.inputs.pop(entered[0], None)
        if isinstance(epsilon, float):
            variance = spread(args[0].detach().double(), args, kwargs)
            self._norm(name, NormInput(float(variance.median()), epsilon))

    def shortened(self, name: str, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        """Vectors divided by their length."""
        axis = kwargs.get("dim", args[2] if len(args) > 2 else 1)
        lengths = args[0].detach().double().norm(dim=axis)
        self._norm(f"{name}[normalize]", NormInput(float(lengths.median()) ** 2, 1e-24, True))

    def _norm(self, name: str, made: NormInput) -> None:
        """The smallest of what a module normalizes is kept."""
        before = self.found.norms.get(name)
        if before is None or made.variance < before.variance:
            self.found.norms[name] = made

    def softened(self, name: str, func: Any, args: Any, kwargs: Any, output: Tensor) -> None:
        logits = args[0]
        axis = kwargs.get("dim", args[1] if len(args) > 1 else -1)
        axis = (-1 if axis is None else axis) % max(logits.dim(), 1)
        if logits.dim() < 2 or logits.shape[axis] < 2:
            return
        self.found.attends = self.found.attends or logits.dim() > 3 or logits.shape[-1] == logits.shape[-2]
        self._look_at_mask(name, logits == -math.inf)
        logits = logits.detach().movedim(axis, -1)
        if _sums_to_one(logits):
            self.found.bounded.append((name, "softmax", "softmax"))
        top = logits.amax(-1, keepdim=True)
        open_ones = logits > top - MASKED if bool(top.isfinite().all()) else logits > -math.inf
        several = open_ones.sum(-1) > 1
        if not bool(several.any()):
            return
        variance = _variance(logits.double(), open_ones)[several].mean()
        weights = logits.softmax(-1).amax(-1)[several].double().mean()
        if logits.dim() == 2 and axis == 0 and len({*args[0].shape}) == 1:
            self._across[output] = name
        square = logits.dim() > 2 and axis != logits.dim() - 1 and len({*args[0].shape[-2:]}) == 1
        options, source = float(open_ones.sum(-1).double().mean()), self._sources.get(args[0])
        made = Softmax(float(weights), float(variance), options, None, square, source)
        before = self.found.softmaxes.get(name)
        if before is None or made.variance > before.variance:
            self.found.softmaxes[name] = replace(made, logits=logits if made.variance > 1.0 else None)

    def attended(self, name: str, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        self.found.attends = True
        mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
        if mask is not None:
            self._look_at_mask(name, mask == -math.inf if mask.is_floating_point() else ~mask)

    def attended_within(self, name: str, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        """torch's own attention keeps its softmax to itself; of its masks one is by key."""
        hidden = kwargs.get("key_padding_mask")
        if hidden is not None:
            hidden = hidden == -math.inf if hidden.is_floating_point() else hidden.bool()
            count = int(hidden.all(-1).sum()) if hidden.dim() == 2 else 0
            self.found.unseen |= {name: count} if count else {}

    def _look_at_mask(self, name: str, hidden: Tensor) -> None:
        """Rows in which nothing may be seen, and square masks that hide all that came before."""
        if hidden.dim() < 2:
            return
        rows = int(hidden.all(-1).sum())
        if rows:
            self.found.blind[name] = rows
        length = hidden.shape[-1]
        if length < 4 or hidden.shape[-2] != length:
            return
        one = ~hidden.reshape(-1, length, length)[0]
        if not bool(one.tril(-1).any()) and float(one.triu(1).double().sum()) > 0.25 * length * (length - 1):
            self.found.future.append(name)

    def entered(self, name: str, func: Any, args: Any, kwargs: Any, output: Tensor) -> None:
        given = args[0] if args else kwargs.get("input")
        known = self._known.get(id(given))
        if known is not None and known[1] and given.is_floating_point() and id(output) not in self._known:
            sizes = [float(item.detach().double().square().mean().sqrt()) for item in (given, output)]
            spread = float(given.detach().double().std()) if given.numel() > 1 else sizes[0]
            self.found.inputs[name] = (sizes[0], sizes[1], spread)
            self._entering[id(output)] = (name, output)

    def raised(self, name: str, func: Any, args: Any, kwargs: Any, output: Tensor) -> None:
        if id(output) not in self._known:
            self.found.exponents[name] = float(args[0].detach().real.double().median())

    def cut(self, name: str, func: Any, args: Any, kwargs: Any, output: Tensor) -> None:
        if args[0].requires_grad and id(args[0]) not in self._known:
            self.found.detached[name] = self.found.detached.get(name, 0) + 1

    def classified(self, name: str, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        logits = args[0] if args else kwargs["input"]
        target = args[1] if len(args) > 1 else kwargs["target"]
        if logits.dim() < 2 or not isinstance(output, Tensor) or output.dim():
            return
        logits = logits.detach().movedim(1, -1).flatten(0, -2) if logits.dim() > 2 else logits.detach()
        ignored = kwargs.get("ignore_index", -100)
        labelled = target.is_floating_point() or bool((target != ignored).any())
        summed = 0 if kwargs.get("reduction", "mean") == "mean" else len(logits)
        value = float(output) / max(summed, 1)
        least = float(logits.min()) if filled(logits).any() else -math.inf
        rows = [_over_classes(part, least) for part in logits.split(max(1, PIECE // max(1, logits.shape[-1])))]
        counts, spread = (torch.cat(column) for column in zip(*rows, strict=True))
        if logits.shape[0] == logits.shape[1] > 2 and not target.is_floating_point() and target.dim() == 1:
            own = torch.arange(len(logits), device=target.device)
            if bool((logits.argmax(1) == own).all()) and not bool((target == own).any()):
                self.found.itself.append(name)
        likely = _sums_to_one(logits)
        self._judged(name, "cross_entropy", args[0] if args else kwargs["input"], likely)
        self.found.losses.append(
            LossCall(
                name,
                "cross_entropy",
                logits.shape[-1],
                value,
                float(counts.log().mean()),
                float(spread.mean()),
                likely,
                labelled,
                summed,
                source=self._sources.get(args[0] if args else kwargs["input"]),
                offset=_offset(self._ids, target, ignored),
            )
        )
        self.logits = logits

    def _judged(self, name: str, reader: str, logits: Tensor, likely: bool = False) -> None:
        maker = "softmax" if likely else self._squashed.get(logits)
        if maker is not None:
            self.found.bounded.append((name, reader, maker))

    def hardened(self, name: str, func: Any, args: Any, kwargs: Any, output: Tensor) -> None:
        axis = kwargs.get("dim", args[1] if len(args) > 1 else -1)
        if args[0].dim() and _sums_to_one(args[0].detach().movedim(-1 if axis is None else axis, -1)):
            self.found.bounded.append((name, "log_softmax", "softmax"))

    def likely(self, name: str, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        """What takes the logarithms of probabilities: over the classes these sum to one."""
        given = (args[0] if args else next(iter(kwargs.values()))).detach()
        sums = given.logsumexp(1 if func is F.nll_loss and given.dim() > 1 else -1)
        target = kwargs.get("target", args[1] if len(args) > 1 else None)
        if func is F.kl_div and (target is None or kwargs.get("log_target") or not _sums_to_one(target.detach())):
            return
        if float(sums.abs().max()) > LIKELY:
            self.found.unlikely.append((name, func.__name__, float(sums.exp().median())))

    def squashed(self, name: str, func: Any, args: Any, kwargs: Any, output: Tensor) -> None:
        self._squashed[output] = func.__name__.strip("_")

    def viewed(self, name: str, func: Any, args: Any, kwargs: Any, output: Tensor) -> None:
        if args[0] in self._squashed:
            self._squashed[output] = self._squashed[args[0]]

    def regressed(self, name: str, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        """Beside the loss of zeros: as predictions, as logits, or one half as probabilities."""
        names = ("input", "target")
        made, wanted = (args[i] if len(args) > i else kwargs[key] for i, key in enumerate(names))
        if not isinstance(output, Tensor) or not made.numel():
            return
        guess = torch.full_like(made.detach(), 0.5 if func is F.binary_cross_entropy else 0.0)
        rest = {key: item for key, item in kwargs.items() if key not in names}
        value, chance = (float(item.double().mean()) for item in (output, func(guess, wanted, *args[2:], **rest)))
        if func is F.binary_cross_entropy_with_logits:
            self._judged(name, "binary_cross_entropy_with_logits", made)
        apart = func is F.binary_cross_entropy and self._squashed.get(made) == "softmax"
        if apart and not _sums_to_one(wanted.detach()):
            self.found.bounded.append((name, "binary_cross_entropy", "softmax"))
        self._regressed(name, "binary" if func in BINARY else "regression", made, wanted, value, chance)

    def _regressed(self, name: str, kind: str, made: Tensor, wanted: Tensor, value: float, chance: float) -> None:
        """A loss of numbers: in function or by hand."""
        variance = float(made.double().var(correction=0)) if made.numel() > 1 else 0.0
        self.judged.append(made)
        both = torch.broadcast_shapes(made.shape, wanted.shape).numel()
        if made.dim() != wanted.dim() and both > max(made.numel(), wanted.numel()):
            self.found.broadcast.append((name, tuple(made.shape), tuple(wanted.shape)))
        maker = self._squashed.get(made)
        if maker is not None and kind == "regression":
            low, high = BOUNDS[maker]
            outside = float(((wanted < low) | (wanted > high)).double().mean())
            if outside > limit("targets_beyond"):
                self.found.unreached.append((name, maker, outside))
        source, size = self._sources.get(made), float(wanted.detach().double().square().mean()) ** 0.5
        self.found.losses.append(LossCall(name, kind, 1, value, chance, variance, wanted=size, source=source))


def _offset(inputs: list[Tensor], labels: Tensor, ignored: int) -> int | None:
    """By how many places the labels lie ahead of the tokens that they are: 1 as it should be, 0 for copies of them."""
    for ids in inputs:
        if labels.is_floating_point() or labels.numel() % len(ids) or len(ids.unique()) < 3:
            continue
        rows, length = labels.view(len(ids), -1), ids.shape[1]
        for offset in (0, 1, 2, -1):
            first, last = max(0, -offset), min(rows.shape[1], length - offset)
            same = rows[:, first:last] == ids[:, first + offset : last + offset]
            if last - first > 3 and bool((same | (rows[:, first:last] == ignored)).all()):
                return offset
    return None


def _sums_to_one(values: Tensor) -> bool:
    """Along the last axis, what is masked left out; the first row tells of nearly all that do not."""
    for part in (values[(0,) * (values.dim() - 1)], values) if values.numel() else ():
        shown = part.masked_fill(part == -math.inf, 0.0)
        if shown.shape[-1] < 2 or not bool((shown >= 0).all()) or not bool(((shown.sum(-1) - 1).abs() < 1e-4).all()):
            return False
    return values.numel() > 0


def _spread(values: Tensor) -> float:
    return float(values.detach().double().var(correction=0))


def note_unit(found: Calls, name: str, seen: Activity) -> None:
    """The largest shares of a name are kept."""
    before = found.activity.get(name, Activity())
    if seen.saturated > before.saturated:
        before = replace(before, saturated=seen.saturated, reads=seen.reads, maker=seen.maker)
    found.activity[name] = replace(before, dead=max(before.dead, seen.dead), silent=before.silent or seen.silent)


def note_gate(found: Calls, name: str, gate: Tensor) -> None:
    """The one of a name with the least slope is kept."""
    gate = gate.detach().double()
    made = Gate(float(gate.mean()), float((4 * gate * (1 - gate)).mean()))
    before = found.gates.get(name)
    if before is None or made.slope < before.slope:
        found.gates[name] = made


def filled(logits: Tensor) -> Tensor:
    """Entries that were masked with one large negative number: it stands there more than once."""
    least = logits.min()
    mask = logits == least
    return mask if float(least) < -1e3 and int(mask.sum()) > 1 else torch.zeros_like(mask)


def note_recurrence(found: Calls, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
    """Gates of a first layer of torch's own recurrent modules, which keep them to themselves."""
    made = output[0] if isinstance(output, tuple) else output
    x = inputs[0] if inputs else None
    if isinstance(module, nn.RNNBase) and module.num_layers > 1 and module.dropout:
        found.dropouts[name] = float(module.dropout)
    kinds = RECURRENT.get(type(module), ())
    if (
        not kinds
        or getattr(module, "nonlinearity", "tanh") != "tanh"
        or not isinstance(x, Tensor)
        or not isinstance(made, Tensor)
    ):
        return
    state = torch.zeros(*made.shape[:-1], module.hidden_size).to(made)  # type: ignore[arg-type]
    if module.num_layers == 1 and made.shape[-1] == module.hidden_size and made.dim() == 3:
        time = 1 if module.batch_first else 0
        state = torch.cat([torch.zeros_like(made.narrow(time, 0, 1)), made.narrow(time, 0, made.shape[time] - 1)], time)
    with torch.no_grad():
        weights = ((x, module.weight_ih_l0), (state, module.weight_hh_l0))  # einsum: the mode does not look at it
        sums: Tensor = sum(torch.einsum("...i,oi->...o", item, weight) for item, weight in weights)  # type: ignore
        if module.bias:
            sums = sums + module.bias_ih_l0 + module.bias_hh_l0  # type: ignore[operator]
    for kind, part in zip(kinds, sums.chunk(len(kinds), -1), strict=True):
        note_gate(found, f"{name}[{kind}]", torch.special.expit(part if "gate" in kind else 2 * part.abs()))
        if "value" in kind:
            share = float((part.abs() > math.atanh(1.0 - BOUND_SHARE)).double().mean())
            note_unit(found, name, Activity(saturated=share, reads=float(part.double().square().mean()) ** 0.5))


def _over_classes(logits: Tensor, fill: float) -> tuple[Tensor, Tensor]:
    """Of each row: how many classes are allowed (finite, and not the fill of a mask), and their variance."""
    allowed = logits.isfinite() & (logits > fill)
    return allowed.sum(-1).clamp_min(1).double(), _variance(logits.double(), allowed)


def _variance(values: Tensor, allowed: Tensor) -> Tensor:
    """Along the last axis, over what is allowed."""
    counts = allowed.sum(-1).clamp_min(1)
    mean = values.where(allowed, 0.0).sum(-1) / counts
    return (values - mean[..., None]).square().where(allowed, 0.0).sum(-1) / counts


def _dead(output: Tensor) -> float:
    """Share of units that are zero on every position: channels come last, or second where there are pixels."""
    if output.dim() < 2 or output.numel() < FEWEST * output.shape[1 if output.dim() == 4 else -1]:
        return 0.0
    units = output.movedim(1 if output.dim() == 4 else -1, 0).flatten(1)
    return float((units == 0).all(1).double().mean())


def _of_batch(x: Tensor, args: Any, kwargs: Any) -> Tensor:
    """Variances that a batch norm divides by: its running ones where it is not training."""
    running = kwargs.get("running_var", args[2] if len(args) > 2 else None)
    training = kwargs.get("training", args[5] if len(args) > 5 else False)
    if not training and running is not None:
        return running.double()
    return x.transpose(0, 1).flatten(1).var(-1, correction=0)


def _of_group(x: Tensor, args: Any, kwargs: Any) -> Tensor:
    groups = kwargs.get("num_groups", args[1] if len(args) > 1 else 1)
    return x.reshape(len(x), groups, -1).var(-1, correction=0)


Spread = Callable[[Tensor, Any, Any], Tensor]
NORMS: dict[Any, tuple[int, Spread]] = {
    F.layer_norm: (4, lambda x, args, kwargs: x.var(-1, correction=0)),
    F.rms_norm: (3, lambda x, args, kwargs: x.square().mean(-1)),
    F.group_norm: (4, _of_group),
    F.batch_norm: (7, _of_batch),
    F.instance_norm: (7, lambda x, args, kwargs: x.flatten(2).var(-1, correction=0)),
}
LAYERS = (F.linear, F.conv1d, F.conv2d, F.conv3d)
PRODUCTS = (
    *LAYERS,
    torch.matmul,
    Tensor.matmul,
    Tensor.__matmul__,
    Tensor.__rmatmul__,
    torch.mm,
    Tensor.mm,
    torch.bmm,
    Tensor.bmm,
    torch.einsum,
)
FACTORED = (torch.mul, Tensor.mul, Tensor.__mul__)
DIFFERENCES = (torch.sub, Tensor.sub, Tensor.__sub__, Tensor.__rsub__)
BINARY = (F.binary_cross_entropy, F.binary_cross_entropy_with_logits)
KINDS: dict[Any, tuple[Any, ...]] = {
    CallWatch.rectified: (F.relu, torch.relu, Tensor.relu, torch.relu_, F.relu6),
    CallWatch.bounded: (torch.tanh, Tensor.tanh, F.tanh),
    CallWatch.gated: (torch.sigmoid, Tensor.sigmoid, F.sigmoid, Tensor.sigmoid_),
    CallWatch.squashed: (
        torch.sigmoid,
        Tensor.sigmoid,
        F.sigmoid,
        F.relu,
        torch.relu,
        Tensor.relu,
        torch.tanh,
        Tensor.tanh,
        F.softmax,
        torch.softmax,
        Tensor.softmax,
    ),
    CallWatch.hardened: (F.log_softmax, torch.log_softmax, Tensor.log_softmax),
    CallWatch.likely: (F.nll_loss, F.ctc_loss, F.kl_div),
    CallWatch.viewed: (
        *(Tensor.view, Tensor.reshape, Tensor.flatten, Tensor.squeeze, Tensor.transpose, Tensor.permute),
        *(Tensor.__getitem__, torch.flatten, torch.squeeze, torch.reshape),
    ),
    CallWatch.dropped: (F.dropout, torch.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout),
    CallWatch.chosen: (torch.topk, Tensor.topk, torch.argmax, Tensor.argmax),
    CallWatch.normed: tuple(NORMS),
    CallWatch.shortened: (F.normalize,),
    CallWatch.softened: (F.softmax, torch.softmax, Tensor.softmax),
    CallWatch.attended: (F.scaled_dot_product_attention,),
    CallWatch.attended_within: (F.multi_head_attention_forward,),
    CallWatch.entered: (
        F.linear,
        F.conv1d,
        F.conv2d,
        F.conv3d,
        torch.matmul,
        Tensor.matmul,
        Tensor.__matmul__,
        torch.mm,
    ),
    CallWatch.looked_up: (F.embedding,),
    CallWatch.multiplied: (torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, F.dropout),
    CallWatch.added: (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__),
    CallWatch.raised: (torch.exp, Tensor.exp),
    CallWatch.cut: (Tensor.detach, torch.detach),
    CallWatch.classified: (F.cross_entropy,),
    CallWatch.regressed: (*BINARY, F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss),
}
RECURRENT: dict[type, tuple[str, ...]] = {
    nn.LSTM: ("input gate", "forget gate", "cell value", "output gate"),
    nn.GRU: ("reset gate", "update gate", "new value"),
    nn.RNN: ("value",),
}
"""What the rows of their matrices make, in order."""
NOTES: dict[Any, list[Callable[..., None]]] = {}
for _note, _functions in KINDS.items():
    for _function in dict.fromkeys(_functions):
        NOTES.setdefault(_function, []).append(_note)
