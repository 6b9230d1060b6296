"""Every thread asked, and its printed answer judged by words and, where it prints a fix, by running that.

python -m studies.threads.judge            # writes docs/data/threads.json
python -m studies.threads.judge 4 14       # only these rows, with the whole answer
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import date
from pathlib import Path

import torch

from studies.threads import THREADS

STORED = Path("docs/data/threads.json")


def main(*rows: str) -> None:
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    judged = []
    for item in THREADS:
        if rows and str(item.row) not in rows:
            continue
        row = item.judged()
        judged.append(row)
        right = not row["missing"] and not row["wrong"]
        print(f"{row['row']:>3} {row['thread']}: {'right' if right else 'NOT RIGHT'}", row["missing"], row["wrong"],
              "works:", row["works"], row["fixes"][:2], flush=True)  # fmt: skip
        if rows or not right:
            print("    " + row["text"].replace("\n", "\n    "), flush=True)
    right = sum(not row["missing"] and not row["wrong"] for row in judged)
    wrong = sum(bool(row["wrong"]) for row in judged)
    asked = [row["works"] for row in judged if row["works"] is not None]
    print(f"right cause {right} of {len(judged)}; wrong sentences in {wrong}; fixes work {sum(asked)} of {len(asked)}")
    if not rows:
        kept = [{**row, "text": row["text"][:700]} for row in judged]
        STORED.write_text(json.dumps({"date": str(date.today()), "rows": kept}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
