"""How a pass is wired: what is run and not read, read twice, not registered, turned by a reshape, or never moved."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from sigprop.batches import copied, leaves, mapped, tensors_in
from sigprop.checks.ends import entered
from sigprop.checks.observation import is_kept
from sigprop.checks.reshapes import is_turned
from sigprop.checks.thresholds import limit
from sigprop.compat import return_free_memory
from sigprop.errors import SigpropError
from sigprop.losses import LossChoice, objective, white_noise
from sigprop.measurement.batch import call, send_back
from sigprop.measurement.guard import untouched
from sigprop.measurement.parameters import embeddings_send_rows, taken_as_they_come
from sigprop.sites import hookable_modules

LAYERS = (F.linear, F.conv1d, F.conv2d, F.conv3d)
LOSSES = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.cross_entropy, F.kl_div)
RESHAPES = (Tensor.view, Tensor.reshape, torch.reshape)
CARRIES = (*RESHAPES, F.dropout, torch.dropout, Tensor.flatten, Tensor.contiguous, Tensor.unsqueeze, Tensor.squeeze)
"""Functions behind which a linear map is linear still, entry by entry."""
PIECEWISE = ("leaky_relu", "prelu", "rrelu", "hardtanh")
"""Activations of straight pieces: numbers that they give back show their slope. Smooth ones give back what is tiny."""
LOW = (torch.float16, torch.bfloat16)
QUARTER_TURN = math.pi / 2
SUMMED = 64
"""Numbers from which on their sum is no mean by another name."""
FEWEST = 4
"""Rows and columns below which sines are not codes of positions or steps."""
ROUNDING = 1e-6
"""Of the largest gradient: what rounding leaves where the gradient is zero."""
MEANT = re.compile(r"shar|tie|univers|loop|recur|reus", re.IGNORECASE)
NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")


@dataclass
class Wired:
    """`turned`: reshapes that a transpose was meant for: place, shapes before and after. `unbroken`: pairs of matrices
    with nothing between them. `strangers`: trained parameters that the model does not register, by place. `dropped`:
    modules that run and whose output nothing reads. `rounded`: where whole numbers become equal in a low precision, and
    that. `slow`: where sines read numbers that span less than a quarter turn, and how much. `idle_rows`: of a matrix
    the first and the last of adjacent rows without a gradient. `unread`: share of an input's entries that nothing
    depends on. `signed`: what makes divisors of both signs, and the share of the rarer one.
    `plain`: activations that leave negative numbers as they are, by place. `drowned`: where parts are concatenated or
    spread over one another: makers of the smaller and the larger one, and how many times larger it is. `moving`: losses
    whose targets have a gradient, as their outputs do, by place. `flat`: where derivatives
    are taken that are zero, `ungraded`: that have no graph. `silent`: places that compute with parameters and
    without gradients. `fast`: where even the slowest sine turns more than half between neighbours, and how much.
    `summed`: where a sum over many numbers joins a mean: both values, how many numbers. `reused`: modules that stand at
    several places of a list, one visit reading what another made."""

    turned: list[tuple[str, tuple, tuple]] = field(default_factory=list)
    unbroken: list[tuple[str, str]] = field(default_factory=list)
    strangers: dict[str, tuple] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    rounded: dict[str, torch.dtype] = field(default_factory=dict)
    slow: dict[str, float] = field(default_factory=dict)
    idle_rows: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    unread: dict[str, float] = field(default_factory=dict)
    drowned: dict[str, tuple[str, str, float]] = field(default_factory=dict)
    plain: dict[str, str] = field(default_factory=dict)
    signed: dict[str, float] = field(default_factory=dict)
    moving: dict[str, str] = field(default_factory=dict)
    flat: list[str] = field(default_factory=list)
    ungraded: list[str] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)
    fast: dict[str, float] = field(default_factory=dict)
    summed: dict[str, tuple[float, float, int]] = field(default_factory=dict)
    reused: list[list[str]] = field(default_factory=list)


def wiring(model: nn.Module, batch: Any, loss: LossChoice) -> Wired:
    """One pass with gradients; the model is left as it was."""
    tensors = [tensor for _, tensor in tensors_in(batch)]
    return_free_memory()
    with untouched(model.modules(), tensors), embeddings_send_rows(model.modules()):
        try:
            return _wired(model, batch, loss, True)
        except (SigpropError, RuntimeError, TypeError, ValueError):
            pass
        try:
            return _wired(model, batch, loss, False)
        except SigpropError:  # the model's own: what can be measured is
            return Wired()


def _wired(model: nn.Module, batch: Any, loss: LossChoice, with_inputs: bool) -> Wired:
    """`with_inputs`: gradients of the inputs too, which not every model lets through."""
    model.zero_grad()
    torch.manual_seed(0)
    batch, inputs = _followed(batch) if with_inputs else (copied(batch), {})
    with entered(model) as current, WireWatch(model, current) as watch:
        output = call(model, batch)
        current.append("loss")
        aim = objective(output, batch, loss)
    watch.read(item for _, item in tensors_in(output))
    found = watch.found
    found.dropped = watch.unread_modules()
    found.reused = watch.chained()
    found.unbroken = [(item.site, item.reader) for item in watch.linears if item.reader and item.readers == 1]
    with _noted(model, watch.multiplied) as grads:
        send_back(model, aim.tensor, white_noise(aim.tensor) if aim.is_noise else None)
    largest = max((size for size, _ in grads.values()), default=0.0)
    for name, item in model.named_parameters():
        size, alive = grads.get(name, (0.0, item))
        if size > ROUNDING * largest:
            found.idle_rows |= _idle_rows(name, alive)
    if not watch.drawing:
        found.unread = {
            name: share for name, item in inputs.items() if (share := _unread(item)) > limit("unread_input")
        }
    return found


def _unread(item: Tensor) -> float:
    """Of the places along one axis, the share at which no example has a gradient."""
    used = item.grad != 0 if item.grad is not None else torch.zeros_like(item)
    axes = [used.movedim(axis, 0).flatten(1).any(1) for axis in range(1, item.dim()) if item.shape[axis] > 1]
    return max((1.0 - float(axis.double().mean()) for axis in axes), default=0.0) if bool(used.any()) else 0.0


def _followed(batch: Any) -> tuple[Any, dict[str, Tensor]]:
    """A copy of a batch whose numbers ask for gradients, and the numbers."""
    places = iter([""] if isinstance(batch, Tensor) else [place for place, _ in leaves(batch)])
    inputs: dict[str, Tensor] = {}

    def follow(item: Any) -> Any:
        place = next(places, "")
        if not isinstance(item, Tensor) or not item.is_floating_point() or is_kept(place) or item.dim() < 2:
            return item
        inputs[place.strip("[]")] = item.requires_grad_()
        return item.clone()

    plain = dict(batch) if type(batch) is dict else batch
    return mapped(copied(plain), follow), inputs


@contextmanager
def _noted(model: nn.Module, wanted: set[int]) -> Iterator[dict[str, tuple[float, Tensor]]]:
    """Of gradients of matrices, by `id`, the largest entry and which rows have any; all are let go as they come."""
    found: dict[str, tuple[float, Tensor]] = {}
    names = {id(item): name for name, item in model.named_parameters() if id(item) in wanted}

    def note(parameter: Tensor, gradient: Tensor) -> None:
        if id(parameter) in names:
            name, gradient = names[id(parameter)], gradient.to_dense()
            size, alive = float(torch.linalg.vector_norm(gradient, math.inf)), gradient.flatten(1).any(1)
            known = found.get(name, (0.0, torch.zeros_like(alive)))  # in two parts, as reentrant checkpoints send it
            found[name] = (max(size, known[0]), alive | known[1])

    with taken_as_they_come((item for item in model.parameters() if item.requires_grad), note):
        yield found


def _idle_rows(name: str, alive: Tensor) -> dict[str, tuple[int, int, int]]:
    """The longest run of rows without a gradient, where it is a quarter of all and others have one."""
    ends = [-1, *alive.nonzero().flatten().tolist(), len(alive)]
    start, length = max(((low, high - low - 1) for low, high in pairwise(ends)), key=lambda run: run[1])
    large = len(ends) > 2 and length >= max(8, len(alive) // 4)
    return {name: (start + 1, start + length, len(alive))} if large else {}


@dataclass
class LinearCall:
    """A matrix at work: where, its sizes, how many read what it makes, and the matrix among them."""

    site: str
    entering: int
    leaving: int
    readers: int = 0
    reader: str = ""


class WireWatch(TorchFunctionMode):
    def __init__(self, model: nn.Module, current: list[str]):
        super().__init__()
        self.model, self.current, self.found = model, current, Wired()
        self.registered = {id(item) for item in model.parameters()}
        kept = [item for module in model.modules() for item in vars(module).values() if isinstance(item, Tensor)]
        self.strangers = {id(item) for item in kept if item.requires_grad}
        self.multiplied: set[int] = set()
        self.linears: list[LinearCall] = []
        self.drawing = False
        self._linear: Any = WeakTensorKeyDictionary()
        self._makers: Any = WeakTensorKeyDictionary()
        self._outputs: Any = WeakTensorKeyDictionary()
        self._trained: Any = WeakTensorKeyDictionary()
        self._sums: Any = WeakTensorKeyDictionary()
        self._unread: dict[str, int] = {}
        self._visits: dict[str, list[tuple[Any, Any]]] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> Any:
        copies = {path[0]: path for path in _copies(self.model)}
        self._visits = {name: [] for name in copies}
        self._paths = copies
        for name, module in hookable_modules(self.model):
            owned = name and next(module.parameters(), None) is not None
            self._handles.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
            if owned:
                self._handles.append(module.register_forward_hook(self._leaver(name)))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        for handle in self._handles:
            handle.remove()
        super().__exit__(*error)

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.read(item for _, item in tensors_in((args, kwargs)))

    def _leaver(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            made = [item for _, item in tensors_in(output)]
            if made:
                self._unread[name] = self._unread.get(name, 0) + 1
            for item in made:
                self._outputs.setdefault(item, []).append(name)
            if name in self._visits:
                entered = [item.grad_fn for _, item in tensors_in(args) if item.grad_fn is not None]
                self._visits[name].append((entered, {item.grad_fn for item in made}))

        return hook

    def read(self, items: Iterable[Tensor]) -> None:
        for item in items:
            for name in self._outputs.pop(item, []) if item in self._outputs else ():
                self._unread.pop(name, None)

    def unread_modules(self) -> list[str]:
        """The outermost modules none of whose outputs was read."""
        names = list(self._unread)
        return [name for name in names if not any(name.startswith(f"{other}.") for other in names)]

    def chained(self) -> list[list[str]]:
        """Modules that stand in a list again, where a later visit reads what the first made."""
        return [
            self._paths[name]
            for name, visits in self._visits.items()
            if len(visits) > 1 and _reaches(visits[1][0], visits[0][1])
        ]

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return output
        given = [
            part for item in (*args, *kwargs.values()) for part in (item if isinstance(item, list | tuple) else [item])
        ]
        given = [item for item in given if isinstance(item, Tensor)]
        site = self.current[-1] or "(model)"
        self.read(given)
        self.drawing = self.drawing or name.startswith(("rand", "bernoulli", "multinomial")) or "dropout" in name
        for item in given:
            learns = isinstance(item, nn.Parameter) or id(item) in self.strangers
            if learns and item.requires_grad and site != "loss":
                if id(item) not in self.registered:
                    self.found.strangers.setdefault(site, tuple(item.shape))
                elif func in LAYERS and item.dim() > 1:
                    self.multiplied.add(id(item))
        if func in LOSSES and len(given) > 1 and self._are_trained(*given[:2]):
            self.found.moving[site] = name
        if func is torch.autograd.grad and all(not bool(item.any()) for _, item in tensors_in(output)):
            self.found.flat.append(site)
        cut = func is torch.autograd.grad and self.model.training and torch.is_grad_enabled()
        if cut and not any(item.requires_grad for _, item in tensors_in(output)):
            self.found.ungraded.append(site)
        learned = any(isinstance(item, nn.Parameter) for item in given)
        maker = site if learned else next((self._makers[item] for item in given if item in self._makers), "")
        trained = any(
            item in self._trained or (isinstance(item, nn.Parameter) and item.requires_grad) for item in given
        )
        for _, item in tensors_in(output) if maker else ():
            self._makers[item] = maker
            if trained and item.requires_grad:
                self._trained[item] = True
        if trained and isinstance(output, Tensor) and not torch.is_grad_enabled() and output.is_floating_point():
            self.found.silent.setdefault(site, name)
        if isinstance(output, Tensor):
            self._follow_linear(site, func, given, output)
            self._look(site, name, func, given, output)
        return output

    def _are_trained(self, output: Tensor, target: Tensor) -> bool:
        """Whether both have a gradient from parameters, each its own way."""
        first, second = self._maker(output), self._maker(target)
        return (
            output in self._trained and target in self._trained and "" not in (first[0], second[0]) and first != second
        )

    def _compare(self, site: str, parts: list[Tensor]) -> None:
        """Zeros are starts on purpose, and parameters themselves are biases, tokens and tables."""
        sizes = [(float(item.detach().double().square().mean()) ** 0.5, self._makers[item]) for item in parts]
        sizes = sorted(size for size in sizes if 0.0 < size[0] < math.inf)
        if len(sizes) > 1 and sizes[-1][0] > limit("drowned_part") * sizes[0][0]:
            self.found.drowned[site] = (sizes[0][1], sizes[-1][1], sizes[-1][0] / sizes[0][0])

    def _maker(self, item: Tensor) -> tuple[str, str]:
        """Where parameters made it last, and the last function: what is alike in both moves together on purpose."""
        return self._makers.get(item, ""), type(item.grad_fn).__name__

    def _follow_linear(self, site: str, func: Any, given: list[Tensor], output: Tensor) -> None:
        before = self._linear.get(given[0]) if given else None
        if before is not None and func in CARRIES:
            self._linear[output] = before
            return
        for item in given:
            if item in self._linear:
                self._linear[item].readers += 1
        whole = func in LAYERS and id(given[1]) in self.registered and given[0].dim() > 1
        if whole and (func is F.linear or (given[1][0, 0].numel() > 1 and given[1].shape[1] == given[0].shape[1])):
            leaving, entering = given[1].shape[:2]
            owners = {place.rpartition(".")[0] for place in (site, before.site if before is not None else site)}
            if before is not None and len(owners) == 1 and before.leaving == entering >= min(before.entering, leaving):
                before.reader = site
            self._linear[output] = LinearCall(site, entering, leaving)
            self.linears.append(self._linear[output])

    def _look(self, site: str, name: str, func: Any, given: list[Tensor], output: Tensor) -> None:
        if func in RESHAPES and is_turned(tuple(given[0].shape), tuple(output.shape)):
            self.found.turned.append((site, tuple(given[0].shape), tuple(output.shape)))
        if output.dtype in LOW and output.dim() and output not in self._makers and _merges(name, given, output):
            self.found.rounded.setdefault(site, output.dtype)
        bends = name.strip("_") in PIECEWISE and given[0] is not output
        if bends and bool((given[0] < 0).any()) and torch.equal(given[0], output):
            self.found.plain[site] = name
        spread = name.strip("_") in ("add", "radd") and len(given) == 2 and given[0].shape != given[1].shape
        if spread or func in (torch.cat, torch.concat):
            self._compare(site, [item for item in given if item in self._makers and item.dim() > 1])
        self._look_at_sums(site, name.strip("_"), given, output)
        if name.strip("_") in ("div", "truediv", "divide") and len(given) == 2 and given[1] in self._makers:
            share = min(float((sign * given[1] > 0).double().mean()) for sign in (1, -1))
            if share > limit("divisor_signs") and given[1].numel() > FEWEST:
                self.found.signed[self._makers[given[1]]] = share
        if name in ("sin", "cos") and output.dim() > 1 and output not in self._makers:
            rows = given[0].detach().double().flatten(0, -2)
            gaps = rows.unique(dim=0).sort(0).values.diff(dim=0)
            if len(gaps) >= 4 * FEWEST and float(gaps.median(0).values.min()) > 2 * QUARTER_TURN:
                self.found.fast[site] = float(gaps.median(0).values.min())
            span = float((rows.amax(0) - rows.amin(0)).max())
            if len(rows.unique(dim=0)) >= FEWEST <= rows.shape[1] and span < QUARTER_TURN:
                self.found.slow[site] = span

    def _look_at_sums(self, site: str, name: str, given: list[Tensor], output: Tensor) -> None:
        """Terms of a loss: a sum over everything that meets a mean (or any other number) far smaller, or larger."""
        if output.dim() or output not in self._makers:
            return
        if name == "sum" and given[0].numel() >= SUMMED:
            self._sums[output] = given[0].numel()
        elif name in ("add", "radd", "sub", "rsub") and len(given) == 2 and all(item in self._makers for item in given):
            counts = [self._sums.get(item, 0) for item in given]
            first, second = (abs(float(item.detach())) for item in given)
            if (
                bool(counts[0]) != bool(counts[1])
                and max(first, second) > limit("drowned_part") * min(first, second) > 0
            ):
                self.found.summed[site] = (first, second, max(counts))


def _merges(name: str, given: list[Tensor], output: Tensor) -> bool:
    """Whether different whole numbers become one by rounding."""
    if name == "arange":
        return len(output.unique()) < len(output)
    whole = len(given) > 0 and not given[0].is_floating_point() and given[0].shape == output.shape
    return whole and len(output.unique()) < len(given[0].unique())


def _copies(model: nn.Module) -> list[list[str]]:
    """The paths of modules with parameters that stand in one list again and again, outermost ones only."""
    paths: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if name and next(module.parameters(), None) is not None:
            paths.setdefault(id(module), []).append(name)
    found = [
        names for names in paths.values() if len(names) > 1 and len({NUMBER.sub("*", name) for name in names}) == 1
    ]
    found = [names for names in found if not MEANT.search(" ".join([type(model).__name__, *names]))]
    return [names for names in found if not any(names[0].startswith(f"{other[0]}.") for other in found)]


def _reaches(starts: Iterable[Any], ends: set[Any]) -> bool:
    """Whether a graph of gradients leads from one to the other."""
    waiting, seen = list(starts), set()
    while waiting:
        node = waiting.pop()
        if node in ends:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [item for item, _ in node.next_functions]
    return False
