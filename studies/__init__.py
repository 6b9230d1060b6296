"""One file per table or figure; each is a command, `python -m studies.NAME`."""

import os

os.environ.setdefault("SIGPROP_RAISE_FAULTS", "1")
