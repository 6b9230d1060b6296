"""What all studies share: JSON (compressed where its name ends in `.gz`, always written whole), rows that several
processes make one by one within a time and a memory, tables in Markdown, and pages with tables between two marks."""

from __future__ import annotations

import gzip
import json
import resource
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from sigprop.results.files import write_whole


def read(path: Path, otherwise: Any = None) -> Any:
    """The data of a file; `otherwise` where there is none."""
    if otherwise is not None and not path.exists():
        return otherwise
    content = path.read_bytes()
    return json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)


def write(path: Path, data: Any) -> None:
    """The same data gives the same bytes."""
    content = (json.dumps(data, separators=(",", ":")) + "\n").encode()
    write_whole(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def stamp(command: str, **more: Any) -> dict[str, Any]:
    """What stands at the head of stored data."""
    return {"command": f"python -m studies.{command}", "date": str(date.today()), **more}


def in_processes(
    work: Callable[..., Any], jobs: Iterable[Sequence[Any]], workers: int, prepare: Callable[..., None] | None = None,
    *given: Any,
) -> Iterator[Any]:  # fmt: skip
    """Results as they come, of processes of their own, each prepared by `prepare(*given)`."""
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=prepare, initargs=given) as pool:
        for job in as_completed([pool.submit(work, *item) for item in jobs]):
            yield job.result()


def quiet(gigabytes: int) -> None:
    """One thread for each process, and an error instead of a machine without memory."""
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    resource.setrlimit(resource.RLIMIT_AS, (gigabytes << 30, gigabytes << 30))


class Late(BaseException):
    """Not an Exception, so that no rule mistakes it for a failure of its own."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Late(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def reason_of(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__.strip('_')}: {lines[0] if lines else ''}"[:200]


def table(headings: Sequence[Any], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Lines of a table in Markdown."""
    return [_line(headings), "|" + "---|" * len(headings), *map(_line, rows)]


def _line(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def fill(page: Path, tables: Mapping[str, Iterable[str]]) -> None:
    """A page with new lines between its marks; what people wrote around them stays."""
    text = page.read_text(encoding="utf-8")
    for name, lines in tables.items():
        text = replaced(text, name, ["", *lines, ""])
    write_whole(page, text)


def replaced(text: str, name: str, lines: Iterable[str]) -> str:
    """A page with new lines between `<!-- name -->` and `<!-- end name -->`."""
    start, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    before, found, rest = text.partition(start)
    if not found or end not in rest:
        raise ValueError(f"the page has no lines between {start} and {end}")
    return "\n".join([before + start, *lines, end + rest.partition(end)[2]])
