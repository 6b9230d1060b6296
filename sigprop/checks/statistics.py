"""Significance and names of factors, shared by the findings about draws."""

from __future__ import annotations

import math
from collections import Counter
from statistics import NormalDist

from sigprop.checks.draws import Draw, DrawnParameters
from sigprop.checks.thresholds import limit
from sigprop.results import Init


def sigmas(tests: int) -> float:
    """Standard errors at which one of so many two-sided tests is significant together."""
    return NormalDist().inv_cdf(1.0 - limit("false_alarm") / max(tests, 1) / 2.0)


def differ(left: Draw, right: Draw, tests: int) -> bool:
    """Whether two standard deviations differ beyond sampling and beyond what recipes differ among themselves."""
    if not (left.std > 0 and right.std > 0):
        return False
    distance = abs(math.log(left.std / right.std))
    error = math.hypot(_error(left), _error(right))
    return distance > math.log(limit("draw_factor")) and distance > sigmas(tests) * error


def _error(draw: Draw) -> float:
    return 0.0 if draw.recorded else draw.log_std_error


def largest_normal(entries: int, tests: int) -> float:
    """The distance in standard deviations that the largest of so many normal entries passes with the allowed chance."""
    return NormalDist().inv_cdf(1.0 - max(limit("false_alarm") / (2.0 * entries * max(tests, 1)), 1e-16))


def clusters(members: list[Draw]) -> list[list[Draw]]:
    """Members in groups of one standard deviation, each in the order that they were given."""
    groups: list[list[Draw]] = []
    for row in sorted(members, key=lambda row: row.std):
        allowed = math.log(limit("draw_alike")) + 6.0 * _error(row)
        if groups and math.log(row.std / groups[-1][0].std) <= allowed:
            groups[-1].append(row)
        else:
            groups.append([row])
    return [[row for row in members if row in group] for group in groups]


def majority(members: list[Draw]) -> list[Draw]:
    """The largest group of one standard deviation; empty when it is not most of them."""
    best = max(clusters(members), key=len, default=[])
    return best if len(best) >= limit("draw_majority") * len(members) else []


def known_factor(ratio: float, layers: int = 0, fan_in: int = 0, fan_out: int = 0) -> str:
    """The name of a factor that people forget or apply twice; empty when it is none of them."""
    names = {"2": 2.0, "sqrt(2)": math.sqrt(2), "sqrt(3)": math.sqrt(3), "3": 3.0, "10": 10.0, "100": 100.0}
    if layers > 1:
        names |= {"sqrt(L)": math.sqrt(layers), "sqrt(2 L)": math.sqrt(2 * layers), "L": float(layers)}
        names |= {"2 L": 2.0 * layers}
    if fan_in > 1:
        names |= {"sqrt(fan_in)": math.sqrt(fan_in)}
    if fan_in and fan_out and fan_in != fan_out:
        names |= {"sqrt(fan_out / fan_in)": math.sqrt(fan_out / fan_in)}
    size = math.log(limit("known_factor"))
    for name in sorted(names, key=lambda item: -len(item)):
        if names[name] != 1.0 and abs(math.log(ratio / names[name])) < size:
            return name
        if names[name] != 1.0 and abs(math.log(ratio * names[name])) < size:
            return f"1 / {name}"
    return ""


def spelt(ratio: float, name: str) -> str:
    return f"{ratio:.3g} times ({name})" if name else f"{ratio:.3g} times"


def drawn_like_siblings(row: Draw, draws: DrawnParameters, std: float) -> Init:
    """A fresh draw of a parameter by the law that most of its family has."""
    family = draws.families()[row.family, row.shape]
    laws = Counter(member.law for member in family if member is not row and member.is_random)
    uniform = bool(laws) and laws.most_common(1)[0][0] == "uniform"
    return Init("uniform" if uniform else "normal", std=std)


def is_torch_default(row: Draw) -> bool:
    """Uniform with std 1 / sqrt(3 fan_in), as nn.Linear and nn.Conv start."""
    if not row.fan_in or not row.std or row.law != "uniform":
        return False
    return abs(math.log(row.std * math.sqrt(3.0 * row.fan_in))) < 6.0 * row.log_std_error + 1e-3
