"""`python -m studies.compositions witness | table | page`: the witness, the ablation table, the page."""

from __future__ import annotations

import sys

from studies.compositions.page import write_page
from studies.compositions.table import write_table
from studies.compositions.witness import write_witness

COMMANDS = {"witness": write_witness, "table": write_table, "page": write_page}

for command in sys.argv[1:] or COMMANDS:
    COMMANDS[command]()
