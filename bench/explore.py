"""How soon the explorer answers: a control moved, from the request to the last byte of the answer, over HTTP."""

from __future__ import annotations

import http.client
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlencode

from rich.console import Console
from rich.table import Table

from sigprop.research.explorer import Explorer
from sigprop.research.explorer.own import OwnModel, register
from sigprop.research.explorer.views import view

CASES = {
    "encoder, 24 blocks": {"architecture": "encoder", "depth": 24},
    "encoder, 128 blocks": {"architecture": "encoder", "depth": 128},
    "encoder, Post-LN, dropout": {"architecture": "encoder", "norm": "post", "dropout": 0.1},
    "vit, 12 blocks": {"architecture": "vit", "depth": 12},
    "mlp, 50 layers": {"architecture": "mlp", "depth": 50},
    "mixer, 30 blocks": {"architecture": "mixer", "depth": 30},
    "decoder, 24 blocks (all pairs)": {"architecture": "decoder", "depth": 24},
    "resnet, 3 x 3 blocks": {"architecture": "resnet", "depth": 3},
    "own model: GPT-2 small, 12 blocks": {"architecture": "own"},
}
WIDTHS = [{"width": width} for width in range(128, 1152, 128)]
MOVED = {
    "resnet": [{"width": width} for width in range(16, 144, 16)],
    "own": [{"std_output": round(0.1 * step, 1)} for step in range(5, 14)],
}
"""The control that is moved, by architecture."""


def seconds(port: int, settings: dict) -> list[tuple[float, float]]:
    """Elapsed and processor time for each place of the control, none of which was asked for before."""
    found = []
    for moved in MOVED.get(settings["architecture"], WIDTHS):
        query = urlencode({f"a.{key}": value for key, value in (settings | moved).items()})
        start, work = time.perf_counter(), time.process_time()
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", f"/view?{query}")
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()
        connection.close()
        found.append((time.perf_counter() - start, time.process_time() - work))
    return found[1:]


def register_own_model() -> None:
    """GPT-2 small as a config, which is what the explorer's own model starts from."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({"model_type": "gpt2"}))
        register(OwnModel(str(path)))


def main() -> None:
    view.cache_clear()
    register_own_model()
    table = Table("a control moved", "median ms", "slowest ms", "processor ms", "target")
    with Explorer(0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name, settings in CASES.items():
            times = seconds(server.server_port, settings)
            elapsed, work = zip(*times, strict=True)
            target = "" if "all pairs" in name else "200"
            cells = (statistics.median(elapsed), max(elapsed), statistics.median(work))
            table.add_row(name, *(f"{1e3 * value:.0f}" for value in cells), target)
        server.shutdown()
    Console().print(table)


if __name__ == "__main__":
    main()
