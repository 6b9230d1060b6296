"""Which parameter of one model is which of another: by name, by block, shape and role, or as part of a fused one.

1. The same name, after a prefix that one of the two has is taken off.
2. Within one block, the same shape (or its transpose): the assignment with the most words in common, where words of
   several dialects mean one thing (`wq`, `query`, `q_proj`), and after that the order of registration.
3. Neighbours of one block whose rows add up to those of one parameter: fused query, key and value, gate and up.
4. Experts: one three-dimensional parameter against as many matrices.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

DIALECTS = (
    "q query wq to_q",
    "k key wk to_k",
    "v value wv to_v",
    "qkv wqkv c_attn in_proj query_key_value kv q_k_v",
    "o out wo o_proj out_proj dense c_proj_attn to_out proj",
    "gate w1 gate_proj w_gate",
    "up w3 up_proj fc1 c_fc fc in w_in dense_h_to_4h intermediate wi lin1 linear1",
    "down w2 down_proj fc2 c_proj w_out dense_4h_to_h wo_mlp lin2 linear2",
    "embed wte tok token embedding embeddings embed_tokens tok_embeddings word_embeddings shared",
    "position wpe pos positions embed_positions position_embeddings",
    "head lm_head output unembed decoder logits",
    "attention attn self_attn self_attention mixer sa",
    "mlp ffn feed_forward ff feedforward",
    "norm1 ln_1 ln1 input_layernorm attention_norm norm_attn ln_attn pre_attention",
    "final ln_f norm_f final_layernorm",
    "norm2 ln_2 ln2 post_attention_layernorm ffn_norm mlp_norm ln_mlp norm_mlp",
)
WORDS = {word: line.split()[0] for line in DIALECTS for word in line.split()}
MOST_FUSED = 4


@dataclass(frozen=True, eq=False)
class HeldParameter:
    """One parameter of a model; `values` as (outputs, inputs, ...)."""

    names: tuple[str, ...]
    values: Tensor
    kind: str
    order: int

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)


@dataclass(frozen=True)
class Slice:
    """A parameter, or the rows of it that another model holds by themselves; `get` is a view of the given values."""

    entry: HeldParameter
    get: Callable[[Tensor], Tensor] = field(compare=False)
    rows: tuple[int, int] | None = None

    @property
    def values(self) -> Tensor:
        return self.get(self.entry.values)

    @property
    def name(self) -> str:
        rows = f"[{self.rows[0]}:{self.rows[1]}]" if self.rows else ""
        return self.entry.name + rows


@dataclass(frozen=True)
class Pair:
    a: Slice
    b: Slice
    how: str = "name"

    @property
    def shapes_differ(self) -> bool:
        return self.a.values.shape != self.b.values.shape


@dataclass
class Matching:
    pairs: list[Pair]
    only_a: list[HeldParameter]
    only_b: list[HeldParameter]


def entries_of(parameters: Iterable[dict]) -> list[HeldParameter]:
    """Entries of what `elsewhere.described` tells; transformers' `Conv1D` keeps its weight transposed."""
    found = []
    for order, item in enumerate(parameters):
        turned = item["kind"] == "Conv1D" and item["values"].dim() == 2
        found.append(
            HeldParameter(tuple(item["names"]), item["values"].T if turned else item["values"], item["kind"], order)
        )
    return found


def matched(a: list[HeldParameter], b: list[HeldParameter]) -> Matching:
    pairs, left_a, left_b = _by_name(a, b)
    for key in (_block_and_shape, _block_and_turned_shape):
        found, left_a, left_b = _by_class(left_a, left_b, key, len(a), len(b))
        pairs += found
    for one, other, swap in ((left_a, left_b, False), (left_b, left_a, True)):
        pairs += _fused(one, other, swap)
        pairs += _experts(one, other, swap)
    found, left_a, left_b = _by_class(left_a, left_b, _shape_alone, len(a), len(b))
    pairs = sorted(pairs + found, key=lambda pair: pair.a.entry.order)
    return Matching(pairs, left_a, left_b)


# -- by name


def _by_name(
    a: list[HeldParameter], b: list[HeldParameter]
) -> tuple[list[Pair], list[HeldParameter], list[HeldParameter]]:
    prefixes = [sorted({name.split(".")[0] + "." for entry in side for name in entry.names}) for side in (a, b)]
    best: dict[str, tuple[str, str]] = {}
    known_a, known_b = ({name for entry in side for name in entry.names} for side in (a, b))
    for one, other in product(["", *prefixes[0]], ["", *prefixes[1]]):
        if one and other and len(prefixes[0]) * len(prefixes[1]) > 400:
            continue
        found = {
            name: (name, other + name[len(one) :])
            for name in known_a
            if name.startswith(one) and other + name[len(one) :] in known_b
        }
        if len(found) > len(best):
            best = found
    by_name = {name: entry for entry in b for name in entry.names}
    pairs: list[Pair] = []
    for entry in a:
        others = [by_name[best[name][1]] for name in entry.names if name in best]
        pairs += [_whole(entry, other, "name") for other in dict.fromkeys(others)]
    used = {id(part.entry) for pair in pairs for part in (pair.a, pair.b)}
    return pairs, [item for item in a if id(item) not in used], [item for item in b if id(item) not in used]


def _same(values: Tensor) -> Tensor:
    return values


def _turned(values: Tensor) -> Tensor:
    return values.transpose(0, 1)


def _whole(one: HeldParameter, other: HeldParameter, how: str) -> Pair:
    turn = one.shape != other.shape and one.shape == other.shape[::-1] and len(one.shape) == 2
    return Pair(Slice(one, _same), Slice(other, _turned if turn else _same), how)


# -- by block and shape


def _block(entry: HeldParameter) -> int:
    found = re.search(r"(?:^|\.)(\d+)\.", entry.name)
    return int(found[1]) if found else -1


def _leaf(entry: HeldParameter) -> str:
    return "bias" if entry.name.endswith("bias") else "weight"


def _block_and_shape(entry: HeldParameter) -> tuple:
    return (_block(entry), _leaf(entry), entry.shape)


def _block_and_turned_shape(entry: HeldParameter) -> tuple:
    return (_block(entry), _leaf(entry), tuple(sorted(entry.shape)))


def _shape_alone(entry: HeldParameter) -> tuple:
    return (_leaf(entry), tuple(sorted(entry.shape)))


def _by_class(
    a: list[HeldParameter], b: list[HeldParameter], key: Callable[[HeldParameter], tuple], count_a: int, count_b: int
) -> tuple[list[Pair], list[HeldParameter], list[HeldParameter]]:
    classes: dict[tuple, tuple[list[HeldParameter], list[HeldParameter]]] = defaultdict(lambda: ([], []))
    for side, entries in enumerate((a, b)):
        for entry in entries:
            classes[key(entry)][side].append(entry)
    pairs = []
    for ones, others in classes.values():
        if not ones or not others:
            continue
        costs = [
            [_unlike(one, other) + abs(one.order / count_a - other.order / count_b) for other in others] for one in ones
        ]
        pairs += [
            _whole(ones[row], others[column], "place")
            for row, column in zip(*linear_sum_assignment(costs), strict=True)
        ]
    used = {id(part.entry) for pair in pairs for part in (pair.a, pair.b)}
    return pairs, [item for item in a if id(item) not in used], [item for item in b if id(item) not in used]


def words_of(name: str) -> set[str]:
    """The words of a name in one dialect."""
    found = set()
    for part in re.split(r"[.\d]+", name.lower()):
        for word in (part, part.removesuffix("_proj"), *part.split("_")):
            if word:
                found.add(WORDS.get(word, word))
    found |= {"q", "k", "v"} if "qkv" in found else set()
    return found - {"weight", "bias", "proj", "layers", "h", "blocks", "model", "transformer", "module"}


def _unlike(one: HeldParameter, other: HeldParameter) -> float:
    left, right = words_of(one.name), words_of(other.name)
    return 2.0 * (1.0 - len(left & right) / max(len(left | right), 1))


# -- fused


def _rows(begin: int, end: int) -> Callable[[Tensor], Tensor]:
    return lambda values: values[begin:end]


def _fused(split: list[HeldParameter], fused: list[HeldParameter], swap: bool) -> list[Pair]:
    """Neighbours in `split` that are the rows of one parameter in `fused`; both lists lose what is matched."""
    runs = [(cost, whole, run) for whole in fused for cost, run in _runs(split, whole)]
    pairs: list[Pair] = []
    for _, whole, run in sorted(runs, key=lambda found: found[0]):
        if whole not in fused or any(item not in split for item in run):
            continue
        begin = 0
        for item in run:
            rows = (begin, begin + item.shape[0])
            ends = (Slice(item, _same), Slice(whole, _rows(*rows), rows))
            pairs.append(Pair(*(ends[::-1] if swap else ends), how="fused"))
            begin = rows[1]
            split.remove(item)
        fused.remove(whole)
    return pairs


def _runs(split: list[HeldParameter], whole: HeldParameter) -> Iterator[tuple[float, list[HeldParameter]]]:
    """Runs of neighbours in the block of a parameter that fill it, with how few words they have in common with it."""
    block = [item for item in split if _block(item) == _block(whole) and _leaf(item) == _leaf(whole)]
    block = [item for item in block if item.shape[1:] == whole.shape[1:] and item.shape[0] < whole.shape[0]]
    for count in range(2, MOST_FUSED + 1):
        for start in range(len(block) - count + 1):
            run = block[start : start + count]
            if sum(item.shape[0] for item in run) == whole.shape[0]:
                yield sum(_unlike(item, whole) for item in run) / count, run


def _experts(split: list[HeldParameter], fused: list[HeldParameter], swap: bool) -> list[Pair]:
    """Matrices of experts against one tensor of all of them, matrix by matrix."""
    pairs = []
    for whole in [item for item in fused if len(item.shape) == 3]:
        families: dict[str, list[HeldParameter]] = defaultdict(list)
        for item in split:
            if _block(item) == _block(whole) and len(item.shape) == 2:
                families[pattern(item.name)].append(item)
        families = {key: items for key, items in families.items() if len(items) == whole.shape[0]}
        chosen = _filling(families, whole)
        if chosen is None:
            continue
        keys, turned = chosen
        for number in range(whole.shape[0]):
            begin = 0
            for key in keys:
                item = families[key][number]
                rows = (begin, begin + item.shape[0])
                ends = (Slice(item, _same), Slice(whole, _expert(number, rows, turned), rows))
                pairs.append(Pair(*(ends[::-1] if swap else ends), how="experts"))
                begin = rows[1]
        for key in keys:
            for item in families[key]:
                split.remove(item)
        fused.remove(whole)
    return pairs


def _filling(families: dict[str, list[HeldParameter]], whole: HeldParameter) -> tuple[list[str], bool] | None:
    """One or two families whose matrices together have the shape of a slice, and whether that is transposed."""
    for turned in (False, True):
        outputs, inputs = whole.shape[1:][::-1] if turned else whole.shape[1:]
        fitting = [key for key, items in families.items() if items[0].shape[1] == inputs]
        single = [key for key in fitting if families[key][0].shape[0] == outputs]
        if single:
            return [min(single, key=lambda key: _unlike(families[key][0], whole))], turned
        double = [key for key in fitting if 2 * families[key][0].shape[0] == outputs]
        if len(double) >= 2:
            double.sort(key=lambda key: families[key][0].order)
            gate = [key for key in double if "gate" in words_of(key)]
            return ([*gate, *(key for key in double if key not in gate)][:2], turned)
    return None


def _expert(number: int, rows: tuple[int, int], turned: bool) -> Callable[[Tensor], Tensor]:
    def get(values: Tensor) -> Tensor:
        slice_ = values[number].T if turned else values[number]
        return slice_[rows[0] : rows[1]]

    return get


def pattern(name: str) -> str:
    """The name with numbers of blocks as `*`: what all layers call it."""
    return re.sub(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)", "*", name)


def copied_into(pair: Pair) -> None:
    """Let A's part hold B's numbers; of a part with another shape, entries of it in order, repeated as needed."""
    target, source = pair.a.values, pair.b.values
    with torch.no_grad():
        if target.shape == source.shape:
            target.copy_(source)
        else:
            flat = source.reshape(-1)
            times = math.ceil(target.numel() / flat.numel())
            target.copy_(flat.repeat(times)[: target.numel()].reshape(target.shape))
