"""What the number format in use loses of a tensor.

A tensor that is held in a narrow format has lost already what was too small or too large for it. What can still be
seen is the share of entries in the subnormal range, where bits go missing until nothing is left, the share that has
become infinite, and how near the largest entry is to the largest number.
"""

from __future__ import annotations

import torch
from torch import Tensor

NARROW = {torch.float16: "fp16", torch.bfloat16: "bf16"}


def losses(x: Tensor, signal: bool) -> dict[str, Tensor]:
    """Shares lost at both ends, and the largest entry as a share of the largest number; empty for wide formats."""
    if x.dtype not in NARROW:
        return {}
    prefix = "" if signal else "grad_"
    limits = torch.finfo(x.dtype)
    size = x.abs()
    small = (size > 0) & (size < limits.tiny)
    return {
        f"{prefix}{NARROW[x.dtype]}_underflow": small.float().mean(),
        f"{prefix}{NARROW[x.dtype]}_overflow": size.isinf().float().mean(),
        f"{prefix}{NARROW[x.dtype]}_headroom": size.float().amax() / limits.max,
    }
