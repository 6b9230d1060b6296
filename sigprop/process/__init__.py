"""What a process has only once (random states, signal handlers, the garbage collector) is borrowed and put back.

`undisturbed` is entered by every call that runs a user's model: one at a time, whatever the number of threads.
"""

from sigprop.process.interrupts import Interrupts, interrupts_held
from sigprop.process.undisturbed import undisturbed

__all__ = ["Interrupts", "interrupts_held", "undisturbed"]
