"""Pages of the reference that are made from the code when the site is built."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator


def on_page_markdown(markdown: str, **_: object) -> str:
    """Fill the places that a page marks."""
    if "<!-- commands -->" in markdown:
        markdown = markdown.replace("<!-- commands -->", "\n".join(commands()))
    if "<!-- schemas -->" in markdown:
        markdown = markdown.replace("<!-- schemas -->", "\n".join(schemas()))
    return markdown


def commands() -> Iterator[str]:
    """The help of every command, as the terminal shows it."""
    from typer.testing import CliRunner

    from sigprop.cli.app import COMMANDS, app
    from sigprop.cli.research import RESEARCH_COMMANDS

    for name in ("", *COMMANDS, "research", *(f"research {name}" for name in RESEARCH_COMMANDS)):
        words = [*name.split(), "--help"]
        shown = CliRunner().invoke(app, words, prog_name="sigprop", env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
        yield f"## {f'sigprop {name}'.strip()}\n\n```text\n{shown.output.rstrip()}\n```\n"


def schemas() -> Iterator[str]:
    """The fields of every row that is written to JSON."""
    from sigprop.results import plan, profile, report

    files = {
        f"Profile (schema_version {profile.SCHEMA_VERSION})": (profile.Profile, profile.SiteRow, profile.ParameterRow),
        f"Plan (schema_version {plan.PLAN_SCHEMA_VERSION})": (
            *(plan.Plan, plan.ParameterPlan, plan.Init, plan.JunctionPlan, plan.ScalePlan),
        ),
    }
    files[f"Report (schema_version {report.REPORT_SCHEMA_VERSION})"] = (
        *(report.Report, report.Finding, report.Datum, report.Prescription, report.Margin),
        *(report.Curve, report.ModuleNode, report.ParameterLine),
    )
    for title, kinds in files.items():
        yield f"## {title}\n"
        for kind in kinds:
            first = (kind.__doc__ or "").strip().splitlines()[0]
            yield f"### {kind.__name__}\n\n{first}\n\n| field | type |\n|---|---|"
            for field in dataclasses.fields(kind):
                yield f"| `{field.name}` | `{str(field.type).replace('|', 'or')}` |"
            yield ""
