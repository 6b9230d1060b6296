"""`sigprop mcp`: check, predict, diff and plan as tools of an agent, over stdio (Model Context Protocol).

Answers are JSON of bounded size: at most `ROWS` rows of a kind, with the number of those left out. A MODEL is text, as
on the command line; `file.py:factory` runs that file, as importing it would.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sigprop.api import predict as predict_any
from sigprop.checks import check as check_model
from sigprop.checks.diff import diff as diff_models
from sigprop.distributions import build
from sigprop.errors import SigpropError, UnsupportedError
from sigprop.inputs import open_source, parse_settings
from sigprop.plans.scaling import plan as make_plan
from sigprop.results.profile import streams

ROWS = 24
TOKENS = 32
"""Tokens of a random batch where an answer shall be quick."""
LARGE = 30_000_000
"""Parameters of a model that is not run for a quick answer."""
INSTRUCTIONS = (
    "sigprop tells how signals and gradients travel through a PyTorch model at initialization. MODEL is "
    "`file.py:Class(width=256)`, the path of a Hugging Face config.json, or a reference network (transformer, mlp, "
    "vit, resnet, mixer). Call `check` first; `plan` fixes what it finds; `diff` tells whether two initializations are "
    "the same and which tensor explains the difference; `predict` gives the numbers. quick=True answers in seconds."
)


def check(model: str, settings: list[str] | None = None, quick: bool = True) -> str:
    """What is wrong with the initialization of MODEL: findings with evidence, cause and fix, worst first.

    settings: `key=value`, for reference networks and configs. quick: predict alone, and look for no plan.
    """
    return _answer(_check, model, settings, quick)


def predict(model: str, settings: list[str] | None = None, quick: bool = True) -> str:
    """Variance, token correlation and gradient of every block of MODEL at initialization, with status and error."""
    return _answer(_predict, model, settings, quick)


def diff(
    a: str, b: str = "", meta: bool = False, python: str = "", packages: list[str] | None = None, quick: bool = True
) -> str:
    """Is the initialization of A that of B? What differs, decided by sampling error, and the tensor that explains it.

    Leave b out to compare A with its build on the meta device (meta), by another interpreter (python) or with other
    versions (packages, as `transformers==4.57`). quick: large models are not run, and nothing is said of the share that
    a tensor explains.
    """
    return _answer(_diff, a, b, meta, python, packages, quick)


def plan(
    model: str,
    recipe: str = "unit",
    width: str = "",
    optimizer: str = "adamw",
    export: str = "",
    out: str = "",
    settings: list[str] | None = None,
) -> str:
    """Initialization, residual scales and learning-rate factors for every parameter of MODEL, by recipe and width rule.

    export: code for python, torchtitan, megatron, nanochat or optax. out: a file to write; without one the code is in
    the answer where it is short.
    """
    return _answer(_plan, model, recipe, width, optimizer, export, out, settings)


TOOLS: tuple[Callable[..., str], ...] = (check, predict, diff, plan)


def _answer(function: Callable[..., dict[str, Any]], *arguments: Any) -> str:
    """JSON of what a function says, or of why it refused; what it prints goes to stderr, stdout is the protocol's."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            found = function(*arguments)
        except SigpropError as error:
            found = {"error": " ".join(str(error).split()), "kind": type(error).__name__}
    return json.dumps(found, allow_nan=False)


def _bounded(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"rows": [_plain(row) for row in rows[:ROWS]], "left_out": max(len(rows) - ROWS, 0)}


def _plain(value: Any) -> Any:
    """Four digits, null for what does not exist, short texts."""
    if isinstance(value, float):
        return float(f"{value:.4g}") if abs(value) < float("inf") else None
    if isinstance(value, str):
        return value if len(value) <= 600 else value[:597] + "..."
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value[:ROWS]] if isinstance(value, (list, tuple)) else value


def _opened(model: str, settings: list[str] | None) -> tuple[Any, Any, Any]:
    source = open_source(model, parse_settings(settings or []), batch=1, tokens=TOKENS)
    return build(source.build) if not source.fixed else source.build(), source.batch, source.loss


def _check(model: str, settings: list[str] | None, quick: bool) -> dict[str, Any]:
    report = check_model(*_opened(model, settings)[:2], tokens=TOKENS, prescription=not quick)
    findings = [
        {
            "severity": item.severity,
            "name": item.name,
            "title": item.title,
            "cause": item.cause,
            "evidence": [str(datum) for datum in item.evidence],
            "parameters": item.parameters[:8],
            "sites": item.sites[:8],
            "fix": str(item.prescription or ""),
        }
        for item in report.findings
    ]
    return {"verdict": report.verdict, "findings": _bounded(findings)}


def _predict(model: str, settings: list[str] | None, quick: bool) -> dict[str, Any]:
    loaded, batch, loss = _opened(model, settings)
    profile = predict_any(loaded, batch, loss=loss, verify=0 if quick else None)
    rows = [row for rows in streams(profile.sites).values() for row in rows] or profile.sites
    keys = ("name", "variance", "token_correlation", "grad_variance", "status", "reason", "stated_errors")
    return {
        "summary": profile.summary(),
        "blocks": _bounded([{key: getattr(row, key) for key in keys} for row in rows]),
    }


def _diff(a: str, b: str, meta: bool, python: str, packages: list[str] | None, quick: bool) -> dict[str, Any]:
    large = quick and sum(p.numel() for p in _opened(a, None)[0].parameters()) > LARGE
    options: dict[str, Any] = {"python": python or None, "packages": packages or [], "signals": not large}
    found = diff_models(a, b or None, meta=meta, **options)
    swaps = [{"group": item.group, "a": item.a, "b": item.b, "explained": item.explained} for item in found.swaps]
    return {
        "equal": found.equal,
        "verdict": found.verdict,
        "structure": found.structure[:ROWS],
        "groups": _bounded(swaps),
    }


def _plan(
    model: str, recipe: str, width: str, optimizer: str, export: str, out: str, settings: list[str] | None
) -> dict[str, Any]:
    loaded, batch, _ = _opened(model, settings)
    made = make_plan(loaded, recipe, width=width or None, optimizer=optimizer, batch=batch)
    rows = [{"parameter": row.name, "init": str(row.init), "lr": row.lr, "why": row.why} for row in made]
    told: dict[str, Any] = {"summary": made.summary(), "digest": made.digest, "parameters": _bounded(rows)}
    if export:
        exported = made.export(export, out or None)
        told |= {"not_expressed": list(exported.not_expressed)[:ROWS]}
        told |= {"code": exported.text} if not out and len(exported.text) < 20_000 else {}
    elif out:
        made.to_json(out)
    return told | ({"written": str(Path(out))} if out else {})


def server() -> Any:
    """The server of the official SDK with the four tools."""
    try:
        module = importlib.import_module("mcp.server")
        kind: Any = getattr(module, "MCPServer", None) or importlib.import_module("mcp.server.fastmcp").FastMCP
    except ImportError as error:
        raise UnsupportedError("sigprop mcp needs the official SDK: pip install 'sigprop[mcp]'") from error
    made = kind("sigprop", instructions=INSTRUCTIONS)
    for tool in TOOLS:
        made.tool()(tool)
    return made


def serve() -> None:
    """Answer over stdin and stdout until the client ends."""
    server().run(transport="stdio")
