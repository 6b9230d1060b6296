"""What a process has only once (random states, signal handlers, the garbage collector) is borrowed and put back.

`undisturbed` is entered by every call that runs a user's model: one at a time, whatever the number of threads.
`as_written` and `eagerly` give such a call a model that is not compiled,
`without_observers` one without the hooks of the user, `seed_of` random numbers that nobody else draws.
"""

from sigprop.isolation.interrupts import Interrupts, interrupts_held
from sigprop.isolation.observers import (
    Mode,
    as_written,
    eagerly,
    observers,
    without_accumulation_hooks,
    without_backward_hooks,
    without_observers,
)
from sigprop.isolation.undisturbed import cuda_devices, seed_all, seed_of, undisturbed

__all__ = [
    "Interrupts",
    "Mode",
    "as_written",
    "cuda_devices",
    "eagerly",
    "interrupts_held",
    "observers",
    "seed_all",
    "seed_of",
    "undisturbed",
    "without_accumulation_hooks",
    "without_backward_hooks",
    "without_observers",
]
