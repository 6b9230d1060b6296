"""A function mode that an interrupt cannot confuse."""

from __future__ import annotations

from typing import Any

from torch.overrides import TorchFunctionMode

from sigprop.compat import current_function_mode


class Mode(TorchFunctionMode):
    """Left only if it is the one in force: after an interrupt it may be gone already, with another in its place."""

    def __exit__(self, *error: Any) -> None:
        if current_function_mode() is self:
            super().__exit__(*error)
