"""What the GitHub Action and the pre-commit hook run: the command, its report as files, and a summary as a comment.

`python -m sigprop.integrations.action MODEL AGAINST [OPTIONS]` writes `sigprop-report/`, appends a summary of bounded
size to `$GITHUB_STEP_SUMMARY`, the verdict to `$GITHUB_OUTPUT`, and ends with the command's exit code.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from sigprop.results.report import Margin

FOLDER = Path("sigprop-report")
LONGEST = 6000
"""Characters of a summary: one that fits a comment and is read."""
FINDINGS = 8
SIGNS = {"problem": "❌", "warning": "⚠️", "note": "ℹ️"}


def main(arguments: list[str]) -> int:
    model, against, *options = arguments if len(arguments) > 1 else [*arguments, ""]
    FOLDER.mkdir(exist_ok=True)
    command = ["diff", model, against, "--json"] if against else ["check", model, "--json"]
    if not against:
        command += ["--html", str(FOLDER / "report.html"), "--fix", str(FOLDER / "plan.json")]
    done = subprocess.run(
        [sys.executable, "-m", "sigprop", *command, *options], capture_output=True, text=True, check=False
    )
    print(done.stderr, file=sys.stderr, end="")
    try:
        found = json.loads(done.stdout)
    except ValueError:
        _tell(f"### sigprop\n\n`{model}` could not be read: {done.stderr.strip()[-600:]}\n", "not run")
        return done.returncode or 70
    (FOLDER / "report.json").write_text(done.stdout)
    text = summary_of_diff(found, model, against) if against else summary_of_check(found, model)
    _tell(text, str(found["verdict"]))
    return done.returncode


def summary_of_check(found: dict[str, Any], model: str) -> str:
    """Findings as a table; details are in the artifact."""
    lines = [f"### sigprop check: {found['verdict']}", "", f"`{model}`", ""]
    rows = [item for item in found["findings"] if item["severity"] != "note"][:FINDINGS]
    if rows:
        lines += ["| | what | fix |", "|---|---|---|"]
    for item in rows:
        fix = (item.get("prescription") or {}).get("text", "")
        lines.append(f"| {SIGNS[item['severity']]} | **{item['name']}**: {_cell(item['title'])} | {_cell(fix)} |")
    margins = [_margin(item) for item in found["margins"][:FINDINGS]]
    lines += ["", "Margins: " + ", ".join(margins)] if margins else []
    notes = sum(item["severity"] == "note" for item in found["findings"])
    left = len(found["findings"]) - notes - len(rows)
    more = {"finding": left, "note": notes}
    told = " and ".join(f"{count} more {what}{'s' * (count > 1)}" for what, count in more.items() if count)
    known = found["meta"].get("ignored", 0)
    lines += ["", f"The whole report{f', with {told},' if told else ''} is in the artifact `sigprop-report`."]
    lines += [f"{known} findings are left out: the baseline or `--ignore` has them."] if known else []
    return _bounded(lines)


def summary_of_diff(found: dict[str, Any], model: str, against: str) -> str:
    lines = [
        f"### sigprop diff: {'equal' if found['equal'] else 'different'}",
        "",
        f"`{model}` against `{against}`",
        "",
    ]
    lines += [_cell(found["verdict"]), *(f"- {_cell(line)}" for line in found["structure"][:FINDINGS])]
    if found["swaps"]:
        lines += ["", "| group | in A | in B | explains |", "|---|---|---|---|"]
    for item in found["swaps"][:FINDINGS]:
        share = "-" if item["explained"] is None else f"{item['explained']:.0%}"
        lines.append(f"| `{item['group']}` | {_cell(item['a'])} | {_cell(item['b'])} | {share} |")
    return _bounded(lines)


def _cell(text: Any) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")[:300]


def _margin(item: dict[str, Any]) -> str:
    value, limit = (math.nan if item[key] is None else item[key] for key in ("value", "limit"))
    return str(Margin(item["what"], value, limit, item["beyond"]))


def _bounded(lines: list[str]) -> str:
    text = "\n".join(lines) + "\n"
    return text if len(text) <= LONGEST else text[:LONGEST] + "\n...\n"


def _tell(text: str, verdict: str) -> None:
    """Where GitHub reads it, and on the terminal."""
    print(text)
    (FOLDER / "summary.md").write_text(text, encoding="utf-8")
    for variable, line in (("GITHUB_STEP_SUMMARY", text), ("GITHUB_OUTPUT", f"verdict={' '.join(verdict.split())}\n")):
        if os.environ.get(variable):
            with open(os.environ[variable], "a", encoding="utf-8") as file:
                file.write(line)


def hook() -> None:
    """`sigprop-check MODEL ... OPTIONS`: the pre-commit hook; the worst exit code of all models."""
    models = list(itertools.takewhile(lambda item: not item.startswith("-"), sys.argv[1:]))
    options = sys.argv[1 + len(models) :]
    command = [sys.executable, "-m", "sigprop", "check", "--quiet", *options]
    codes = [subprocess.run([*command, item], check=False).returncode for item in models]
    if not models:
        print(
            "sigprop-check: needs args in .pre-commit-config.yaml, models first: args: ['net.py:Net']", file=sys.stderr
        )
        codes = [2]
    raise SystemExit(max(codes))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
