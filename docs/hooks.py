"""Pages of the reference that are made from the code when the site is built, and the JSON schemas beside them.

`python docs/hooks.py` writes `docs/schemas/`; a test holds the files against the code.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from sigprop.plans import Plan
from sigprop.results import Profile, Report
from sigprop.results.difference import InitDiff
from sigprop.results.files import saved_fields

FOLDER = Path(__file__).parent / "schemas"
RESULTS = {kind.DOCUMENT[0]: (kind, kind.DOCUMENT[1]) for kind in (Profile, Plan, Report, InitDiff)}
TEXT = {"type": "string"}
DERIVED: dict[str, dict[str, Any]] = {
    "profile": {"provenance": TEXT},
    "plan": {},
    "report": {"kind": {"const": "sigprop report"}, "verdict": TEXT},
    "diff": {"kind": {"const": "sigprop diff"}, "verdict": TEXT, "equal": {"type": "boolean"}},
}
"""What `to_json` writes beside the fields; reading does not need it."""
WORDS = {str: "string", int: "integer", bool: "boolean"}
NUMBER = {
    "description": "null: not a number",
    "anyOf": [{"type": ["number", "null"]}, {"enum": ["inf", "-inf"]}],
}


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
    for name, (kind, version) in RESULTS.items():
        made, file = json_schema(name), file_of(name)
        yield f"## {kind.__name__} (schema_version {version})\n\nSchema: [{file}](../schemas/{file})\n"
        yield from _fields(made)
        for row, definition in made["$defs"].items():
            if "properties" in definition:
                yield f"### {row}\n"
                yield from _fields(definition)


def _fields(definition: dict[str, Any]) -> Iterator[str]:
    yield f"{definition['description']}\n\n| field | type |\n|---|---|"
    for field, kind in definition["properties"].items():
        yield f"| `{field}` | {_words(kind)} |"
    yield ""


def _words(kind: dict[str, Any]) -> str:
    if "$ref" in kind:
        return kind["$ref"].rpartition("/")[2]
    if "anyOf" in kind:
        return " or ".join(map(_words, kind["anyOf"]))
    if "const" in kind:
        return f"`{json.dumps(kind['const'])}`"
    inner = kind.get("items") or kind.get("additionalProperties")
    return kind.get("type", "anything") + (f" of {_words(inner)}" if inner else "")


def file_of(name: str) -> str:
    return f"{name}-{RESULTS[name][1]}.json"


def json_schema(name: str) -> dict[str, Any]:
    """What `to_json` of this result writes, as JSON Schema; made from its dataclasses."""
    kind, version = RESULTS[name]
    rows: dict[str, Any] = {"number": NUMBER}
    made = _object(kind, rows)
    made["properties"] = {"schema_version": {"const": version}, **DERIVED[name], **made["properties"]}
    made["required"].insert(0, "schema_version")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": file_of(name), "title": kind.__name__,
            **made, "$defs": rows}  # fmt: skip


def _object(kind: Any, rows: dict[str, Any]) -> dict[str, Any]:
    """A dataclass. A row needs the fields without a default, as reading does; a result needs all of them."""
    hints = get_type_hints(kind)
    written = saved_fields(kind)
    whole = kind in {result for result, _ in RESULTS.values()}
    needed = [item.name for item in written if whole or _has_no_default(item)]
    return {
        "type": "object",
        "description": " ".join((kind.__doc__ or "").split("\n\n")[0].split()),
        "properties": {item.name: _schema(hints[item.name], rows) for item in written},
        "required": needed,
        "additionalProperties": False,
    }


def _has_no_default(item: dataclasses.Field) -> bool:
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


def _schema(hint: Any, rows: dict[str, Any]) -> dict[str, Any]:
    """What one annotation allows; the dataclasses it names are added to `rows`."""
    origin, inner = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint):
        name = hint.__name__  # type: ignore[union-attr]
        if name not in rows:
            rows[name] = {}
            rows[name].update(_object(hint, rows))
        return {"$ref": f"#/$defs/{name}"}
    if origin in (Union, types.UnionType):
        kinds = [_schema(item, rows) for item in inner if item is not type(None)]
        return {"anyOf": [*kinds, {"type": "null"}]}
    if origin in (list, tuple):
        fixed = {} if origin is list or inner[-1] is Ellipsis else {"minItems": len(inner), "maxItems": len(inner)}
        return {"type": "array", "items": _schema(inner[0], rows), **fixed}
    if origin is dict:
        values = _schema(inner[1], rows)
        return {"type": "object", **({"additionalProperties": values} if values else {})}
    if hint is float:
        return {"$ref": "#/$defs/number"}
    return {} if hint is Any else {"type": WORDS[hint]}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for title in RESULTS:
        (FOLDER / file_of(title)).write_text(json.dumps(json_schema(title), indent=1) + "\n", encoding="utf-8")
