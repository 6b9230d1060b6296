"""dslm Table 5 in reduced size: Pre-LN models of one number of parameters, with and without DeepScale.

The machinery and shapes of Table 4.
"""

from __future__ import annotations

from typing import Any

from studies.dslm_table4 import losses_of, rows_of, shapes
from studies.reproduction import MATRIX_XAVIER, ON_BYTES, Judgement, Reproduction, Setting
from studies.text_runs import LETTERS, Program, bytes_told

FULL = Program(tuple(2.0**-power for power in (12, 11, 10, 9)), (0, 1), 16, 128, 400)
SMALL = Program((2.0**-8, 2.0**-7), (0,), 4, 64, 200)
PAPER = {
    "Xavier": ("29.4 (12 x 512)", "20.6 (96 x 512)", "19.8 to 26.9"),
    "DeepScale": ("26.0", "15.4", "17.0 to 25.9"),
}


def run(setting: Setting) -> dict[str, Any]:
    return shapes(setting, "pre", FULL if setting.is_full else SMALL)


def judge(data: dict[str, Any]) -> Judgement:
    xavier, scaled = (losses_of(data, method) for method in PAPER)
    rows = rows_of(data, PAPER)
    gains = [before - after for before, after in zip(xavier, scaled, strict=True)]
    said = f"{bytes_told(data['tokens'])}. From Xavier's loss DeepScale's is "
    said += (
        f"{', '.join(f'{-gain:+.3f}' for gain in gains)} away, from the shallowest shape to the deepest (the paper: "
    )
    said += "-0.12, -0.29, -0.04 to -0.15)."
    if min(*xavier, *scaled) > LETTERS:
        return Judgement("too small to tell", f"Too small to tell: nothing learns more than letters. {said}", rows)
    if min(gains) > 0:
        return Judgement("reproduced", said, rows)
    return Judgement("in order but not in size" if max(gains[1:]) > 0 else "not reproduced", said, rows)


REPRODUCTION = Reproduction(
    id="dslm-table5",
    paper="dslm",
    place="Table 5, in reduced size",
    claim="At every depth a Pre-LN model with DeepScale ends below the vanilla one (17.0 for 19.8 at 192 x 256).",
    run=run,
    judge=judge,
    minutes=(3, 1),
    deviation=ON_BYTES + " " + MATRIX_XAVIER,
    budget=(("steps", 1000.0), ("seeds", 3.0)),
)
