"""Changes of one tensor group, each as one line of code that can be pasted."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from sigprop.results import Edit, Init

PLACE = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")


def edit(what: str, inits: dict[str, Init], because: str = "", code: str = "") -> Edit:
    """The line is written from the entries where it is not given; groups of one init share a line."""
    return Edit(what, code or code_of(inits), inits, because)


def setting(what: str, attributes: dict[str, float], because: str) -> Edit:
    """Numbers of modules, such as the share that a dropout drops."""
    groups: dict[tuple[str, float], list[str]] = {}
    for name, value in attributes.items():
        groups.setdefault((PLACE.sub("*", name, count=1), value), []).append(name)
    lines = [_looped(names, lambda path, value=value: f"{path} = {value:g}") for (_, value), names in groups.items()]
    return Edit(what, "\n".join(line for group in lines for line in group), {}, because, attributes)


def code_of(inits: dict[str, Init]) -> str:
    """`for i in range(6, 12): nn.init.normal_(model.h[i].out.weight, std=0.0041)`; a line per pattern of names."""
    groups: dict[tuple[str, Init], list[str]] = {}
    for name, init in inits.items():
        groups.setdefault((PLACE.sub("*", name, count=1), init), []).append(name)
    return "\n".join(
        line
        for (_, init), names in groups.items()
        for line in _looped(names, lambda path, init=init: _call(init, path))
    )


def listed(names: Sequence[str]) -> str:
    """`h.6.out.weight`, or `h.6 to 11.out.weight` for several of one pattern."""
    patterns: dict[str, list[int]] = {}
    for name in names:
        found = PLACE.search(name)
        patterns.setdefault(PLACE.sub("*", name, count=1), []).extend([int(found.group())] if found else [])
    told = [pattern.replace("*", _numbers(places), 1) if places else pattern for pattern, places in patterns.items()]
    return ", ".join(told[:3]) + (f" and {len(told) - 3} more" if len(told) > 3 else "")


def _numbers(places: Sequence[int]) -> str:
    if len(places) == 1:
        return str(places[0])
    whole = list(places) == list(range(places[0], places[-1] + 1))
    return f"{{{places[0]}..{places[-1]}}}" if whole else "{" + ",".join(map(str, places)) + "}"


def _looped(names: list[str], statement: Callable[[str], str]) -> list[str]:
    places = [int(found.group()) for name in names if (found := PLACE.search(name))]
    if len(names) == 1 or len(places) < len(names):
        return [statement(_path(name)) for name in names]
    return [f"for i in {_over(places)}: {statement(_path(PLACE.sub('i', names[0], count=1)))}"]


def _over(numbers: Sequence[int]) -> str:
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"range({numbers[0]}, {numbers[-1] + 1})" if numbers[0] else f"range({numbers[-1] + 1})"
    return f"({', '.join(map(str, numbers))})"


def _path(name: str) -> str:
    """`model.h[3].out.weight`: numbers, and the `i` of a loop, are indices."""
    return re.sub(r"\.(\d+|i)(?=\.|$)", r"[\1]", f"model.{name}")


def _call(init: Init, path: str) -> str:
    if init.kind == "keep":
        return f"{path}.data.mul_({init.value:.4g})"
    if init.kind == "constant":
        return f"nn.init.constant_({path}, {init.value:.4g})"
    if init.kind == "uniform":
        return f"nn.init.uniform_({path}, -{init.std * 3**0.5:.4g}, {init.std * 3**0.5:.4g})"
    if init.kind == "blocks":
        ends = [sum(init.sizes[: place + 1]) for place in range(len(init.sizes))]
        before = ":, " if init.axis else ""
        return "; ".join(
            _call(part, f"{path}.data[{before}{end - size}:{end}]")
            for size, end, part in zip(init.sizes, ends, init.parts, strict=True)
        )
    return f"nn.init.normal_({path}, std={init.std:.4g})"
