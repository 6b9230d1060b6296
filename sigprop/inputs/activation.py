"""An activation as people write it: a registered name, or `file.py:function` of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from sigprop.errors import InputError
from sigprop.inputs.user_file import is_user_object, read_user_object, user_code


def read_activation(text: str) -> str | Callable[[Tensor], Tensor]:
    """The name itself, or the function that `file.py:function` names, tried once so that its errors name its lines."""
    if not is_user_object(text):
        if text.endswith(".py"):
            raise InputError(f"{text} is a file: needs the name of a function in it, {text}:function")
        return text
    found = read_user_object(text)
    made = found.arguments or found.settings or isinstance(found.value, type)
    function = found.call() if made else found.value
    if not callable(function):
        raise InputError(f"{text} is a {type(function).__name__}: needs a function of a tensor")
    with user_code(found.path):
        function(torch.linspace(-2.0, 2.0, 5, dtype=torch.float64))
    return cast(Callable[[Tensor], Tensor], function)
