"""The depth of a site, defined once for predictions and measurements."""

from __future__ import annotations

import re

BLOCK_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|@|\[|$)")


class DepthCounter:
    """How many repeated blocks the signal has entered, asked site by site in order of execution.

    Inside a block it is the block's number counted from one, elsewhere the deepest block so far.
    """

    def __init__(self) -> None:
        self.deepest = 0

    def __call__(self, name: str) -> int:
        number = BLOCK_NUMBER.search(name)
        if number is None:
            return self.deepest
        depth = int(number.group(1)) + 1
        self.deepest = max(self.deepest, depth)
        return depth
