"""A pytest plugin: `assert_healthy(model)` and `assert_same_init(a, b)`, and fixtures of the same names.

The entry point registers it with the package; `from sigprop.integrations.pytest import assert_healthy` works anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sigprop.results import Report
    from sigprop.results.difference import InitDiff


def assert_healthy(
    model: Any,
    batch: Any = None,
    *,
    level: str = "warning",
    ignore: Iterable[str] = (),
    baseline: str | Path | None = None,
    **options: Any,
) -> Report:
    """Fail where `sigprop.check` finds something at this severity or worse. What `ignore` names (`finding` or
    `finding:pattern`) and what `baseline`, an earlier report, holds is left out of the report."""
    from sigprop.checks import check, without

    __tracebackhide__ = True
    report = without(check(model, batch, **{"prescription": False, **options}), ignore, baseline)
    if report.fails(level):
        pytest.fail(report.text(), pytrace=False)
    return report


def assert_same_init(a: Any, b: Any = None, batch: Any = None, **options: Any) -> InitDiff:
    """Fail where the initializations of two models differ; the options are those of `sigprop.diff`."""
    from sigprop.checks.diff import diff

    __tracebackhide__ = True
    found = diff(a, b, batch, **options)
    if not found.equal:
        pytest.fail(str(found), pytrace=False)
    return found


@pytest.fixture(name="assert_healthy", scope="session")
def healthy_fixture() -> Callable[..., Report]:
    return assert_healthy


@pytest.fixture(name="assert_same_init", scope="session")
def same_init_fixture() -> Callable[..., InitDiff]:
    return assert_same_init
