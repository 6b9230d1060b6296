"""Reshapes told from the transposes that they stand for, by the shapes alone."""

from __future__ import annotations

import math


def is_turned(before: tuple, after: tuple) -> bool:
    """Whether a reshape gives a shape that a transpose would: what stood in one axis is spread over another.

    `(b, c, h, w) -> (b, h w, c)` and back, `(b, t, h d) -> (b, h, t, d)` and back, `(b, t, c) -> (t, b, c)`, and axes
    of an image in another order; a shape that merging or splitting of neighbours explains is none of these."""
    if len(before) < 3 or len(after) < 3 or _nests(before, after):
        return False
    if before[0] != after[0]:
        return len(before) == len(after) == 3 and before[:2] == after[1::-1] and before[2] == after[2]
    old, new = before[1:], after[1:]
    if len(old) == len(new):
        return sorted(old) == sorted(new) and old[0] != new[0]
    few, many = sorted((old, new), key=len)
    if len(few) != 2:
        return False
    moved = many[0] == few[1] and math.prod(many[1:]) == few[0]
    return moved or (len(many) == 3 and many[1] == few[0] and many[0] * many[2] == few[1])


def _nests(before: tuple, after: tuple) -> bool:
    """Whether each axis of either shape is a product of neighbouring ones of the other, or is one of them."""
    left, right = [size for size in before if size > 1], [size for size in after if size > 1]
    while left and right:
        small, large = (left, right) if left[0] <= right[0] else (right, left)
        product = small.pop(0)
        while product < large[0] and small:
            product *= small.pop(0)
        if product != large.pop(0):
            return False
    return True
