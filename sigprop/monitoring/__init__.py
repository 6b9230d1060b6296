"""A run observed: what signals, gradients and updates do while a model trains, from the passes it makes anyway.

`Watch` samples every n-th step and says what leaves its history. `recording` and `sampled_pass` take the numbers,
`updates` reads the optimizer's step, `joining` brings processes together, `folding` makes bounded scalars for `sinks`,
`findings` says what is wrong.
"""

from sigprop.monitoring.history import Sample, read_samples
from sigprop.monitoring.reporting import recorded_run
from sigprop.monitoring.watching import Watch, WatchWarning

__all__ = ["Sample", "Watch", "WatchWarning", "read_samples", "recorded_run"]
