"""What the check of a large model takes, part by part, and how large its report is."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from sigprop.checks import check
from sigprop.distributions import build
from sigprop.report.html import html_page


def bert() -> Any:
    """48 layers of BERT-base, with weights."""
    import transformers

    torch.manual_seed(0)
    return transformers.BertForMaskedLM(transformers.BertConfig(num_hidden_layers=48)).eval()


def llama() -> Any:
    """Llama with 70 billion parameters, by its config."""
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8,
        vocab_size=32000,
    )  # fmt: skip
    return build(lambda: transformers.LlamaForCausalLM(config)).eval()


CASES: dict[str, tuple[Callable[[], Any], str]] = {"BERT, 48 layers": (bert, "20"), "Llama, 70 billion": (llama, "30")}


def main() -> None:
    logging.disable(logging.WARNING)
    torch.set_num_threads(2)
    table = Table("model", "check, s", "processor s", "without a cure, s", "target, s", "report, kB")
    for name, (make, target) in CASES.items():
        model = make()
        start, work = time.perf_counter(), time.process_time()
        report = check(model)
        whole, processor = time.perf_counter() - start, time.process_time() - work
        start = time.perf_counter()
        check(model, prescription=False)
        bare, size = time.perf_counter() - start, len(html_page(report).encode()) / 1e3
        table.add_row(name, f"{whole:.1f}", f"{processor:.1f}", f"{bare:.1f}", target, f"{size:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
