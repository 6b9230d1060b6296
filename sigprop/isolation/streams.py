"""Seeds of what sigprop draws itself, apart from those that users give their weights and batches."""

from __future__ import annotations

import zlib


def seed_of(purpose: str, seed: int) -> int:
    """For one purpose and the seed asked for. Of a seed torch's generator on a CPU reads 32 bits only: `(k << 32) + 3`
    draws the numbers of 3. So a purpose does not stand above them, it is mixed in."""
    return zlib.crc32(f"{purpose} {seed}".encode())
