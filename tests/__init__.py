"""Tests; a fault of sigprop is raised here, and not simulated around."""

import os

os.environ.setdefault("SIGPROP_RAISE_FAULTS", "1")
