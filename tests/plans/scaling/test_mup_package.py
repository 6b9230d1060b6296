"""Plans beside the `mup` package: the same initialization and learning rates, parameter by parameter.

The package's factors were stored by `python -m studies.abc_mup_package`.
"""

import json
from pathlib import Path

import pytest
import torch

from sigprop.plans.scaling import parametrize
from studies.abc_mup_package import BASE, MODELS

STORED = json.loads((Path(__file__).parents[3] / "docs/data/abc_mup_package.json").read_text())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ratio", [2, 4])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_same_factors_as_the_package(name, ratio, optimizer):
    torch.manual_seed(1)
    base, model = MODELS[name](BASE), MODELS[name](ratio * BASE)
    plan = parametrize(model, "mup", base=base, optimizer=optimizer, attention="keep")
    package = STORED["factors"][name][str(ratio)]
    assert set(package) == {row.name for row in plan}
    for row in plan:
        expected = package[row.name]
        assert row.init.kind == "keep"
        assert row.init.value == pytest.approx(expected["init"], rel=1e-5), row.name
        assert row.lr == pytest.approx(expected[optimizer]), row.name
        assert row.weight_decay == pytest.approx(expected[f"{optimizer}_decay"]), row.name
