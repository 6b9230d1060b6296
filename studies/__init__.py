"""Evidence: each file is a command, `python -m studies.NAME`; the claims of papers are listed in `reproductions`."""

import os

os.environ.setdefault("SIGPROP_RAISE_FAULTS", "1")
