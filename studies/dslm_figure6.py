"""dslm Figs. 5 and 6: token correlation over depth, with Xavier and dropout and with DeepScale.

The stacks of `studies.stack_accuracy`: encoders of 192 layers, 128 Zipf-like tokens, dropout 0.1.
"""

from __future__ import annotations

from typing import Any

from studies.reproduction import Judgement, Reproduction, Row, Setting
from studies.stack_accuracy import reproduce

PLATEAU = 0.88
"""Where dslm, appendix F, puts the correlation of Xavier stacks."""


def run(setting: Setting) -> dict[str, Any]:
    return {name: record for name, record in reproduce(setting).items() if "encoder" in name}


def judge(data: dict[str, Any]) -> Judgement:
    curves = {record["case"]: record["measured"]["token_correlation"] for record in data.values()}
    errors = {record["case"]: record["measured"]["token_correlation_error"][-1] for record in data.values()}
    rows = tuple(
        Row(
            f"{case}: token correlation after 12 and after all {len(curve)} layers",
            f"at most {PLATEAU}" if "vanilla" in case else "grows slower",
            f"{curve[11]:.3f}, {curve[-1]:.3f} ± {errors[case]:.3f}",
        )
        for case, curve in curves.items()
    )
    last = curves["encoder-post-vanilla"][-1]
    slower = all(
        curves[f"encoder-{placement}-deepscale"][11] < curves[f"encoder-{placement}-vanilla"][11]
        for placement in ("pre", "post")
    )
    why = f"No collapse: Xavier settles at {last:.3f}, not at 1; with DeepScale correlation grows far more slowly."
    if not slower or last > 0.95:
        return Judgement("not reproduced", f"Correlation ends at {last:.3f}.", rows)
    return Judgement("reproduced" if abs(last - PLATEAU) < 0.05 else "in order but not in size", why, rows)


REPRODUCTION = Reproduction(
    id="dslm-figure6",
    paper="dslm",
    place="Fig. 6 and appendix F",
    claim="With Xavier and dropout tokens do not collapse onto each other: their correlation settles near 0.88, and "
    "grows more slowly with DeepScale.",
    run=run,
    judge=judge,
    minutes=(6, 8),
    earlier=tuple(
        f"stack_encoder-{placement}-{scaling}_192_0.1.json"
        for placement in ("pre", "post")
        for scaling in ("vanilla", "deepscale")
    ),
)
