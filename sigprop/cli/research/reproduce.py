"""`sigprop research reproduce`: claims of the papers run again; the studies lie beside the package, in a checkout."""

from __future__ import annotations

import importlib
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

import sigprop
from sigprop.cli.options import Json, require_device, show
from sigprop.errors import InputError
from sigprop.grid import Grid


class StudyScale(str, Enum):
    SMALL = "small"
    FULL = "full"


def reproduce_command(
    name: Annotated[str, typer.Argument(help="`list`, or the id of a reproduction.", metavar="list|ID")],
    scale: Annotated[
        StudyScale, typer.Option(help="small (minutes on two CPU cores) or full (one large GPU).")
    ] = StudyScale.SMALL,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    data: Annotated[Path | None, typer.Option(help="A folder with `fashion-mnist` and `text` in it.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the record is stored; docs/data by default.")] = None,
    json: Json = False,
) -> None:
    """Run a claim of a paper again.

    Says in words how it went; `list` shows all claims, with what was found before.
    """
    protocol = _studies("reproduction")
    known = _studies("reproductions")
    if name == "list":
        rows = _listed(known.every_claim(), protocol.records())
        show(rows if json else Grid(list(rows[0]), [list(row.values()) for row in rows], wrapped=(1, 3)))
        return
    item = known.reproduction(name)
    require_device(device)
    store = out or protocol.STORE
    setting = protocol.Setting(scale.value, device, data, (out or Path("out")) / "parts" / f"{item.id}.{scale.value}")
    record = protocol.reproduce(item, setting, store)
    show(record if json else _told(record))


def _studies(module: str) -> Any:
    """A module of `studies/`: beside the package that runs, or in the folder one is in."""
    for root in (Path(sigprop.__file__).parents[1], Path.cwd()):
        if (root / "studies" / "reproductions.py").is_file():
            sys.path[:0] = [] if str(root) in sys.path else [str(root)]
            return importlib.import_module(f"studies.{module}")
    raise InputError("the studies are not part of the installed package: run this in a checkout of the repository")


def _listed(items: dict[str, Any], stored: dict[tuple[str, str], Any]) -> list[dict[str, str]]:
    rows = []
    for item in items.values():
        record = stored.get((item.id, "full")) or stored.get((item.id, "small"))
        found = f"{record['judgement']['verdict']} ({record['scale']})" if record else "not run yet"
        found += f"; study: commit {item.commit}" if item.commit else ""
        minutes = " / ".join(f"{value:g}" for value in item.minutes)
        rows.append({"id": item.id, "place": item.place, "minutes, about: small / full": minutes, "found": found})
    return rows


def _told(record: dict[str, Any]) -> Grid:
    judgement = record["judgement"]
    rows = [[row["what"], row["paper"], row["ours"]] for row in judgement["rows"]]
    title = f"{record['id']} ({record['scale']}): {judgement['verdict']}"
    return Grid(["what", "paper", "ours"], rows, title, [judgement["why"]], names=(), wrapped=(0, 1, 2))
