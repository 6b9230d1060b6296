"""One's own model in the explorer: the same graph under other distributions, at any width and depth that it takes."""

import pytest

from sigprop.errors import SigpropError
from sigprop.research.explorer import controls, own
from sigprop.research.explorer.page import answer
from tests.integrations.test_mcp import NET

RESIDUAL = NET.replace("x = torch.relu(block(x))", "x = x + block(torch.relu(x))").replace(
    "depth=3", "depth=3, width=64"
)
RESIDUAL = (
    RESIDUAL.replace("(16, 64)", "(16, width)").replace("(64, 64)", "(width, width)").replace("(64, 4)", "(width, 4)")
)


@pytest.fixture
def model(tmp_path, monkeypatch):
    path = tmp_path / "explored.py"
    path.write_text(RESIDUAL)
    monkeypatch.setattr(controls, "ARCHITECTURES", controls.ARCHITECTURES)
    before = dict(controls.ARCHITECTURES)
    yield own.OwnModel(f"{path}:Net", {"std": 0.17})
    controls.ARCHITECTURES.clear()
    controls.ARCHITECTURES.update(before)


def test_factors_of_std_change_the_stream(model):
    assert model.sizes == {"depth": 3, "width": 64}
    plain, larger = model.predicted(), model.predicted(factors={"output": 2.0})
    assert larger.variance[-1] > 1.5 * plain.variance[-1]
    assert model.predicted().variance == plain.variance
    assert len(model.predicted(depth=8).variance) == 8


def test_recipes_and_code(model):
    found = model.predicted("unit")
    assert found.forward_growth == pytest.approx(1.0, rel=0.3)
    names: dict = {}
    exec(model.code("unit", {"output": 0.5}, {"depth": 2, "width": 32}).replace("print(", "shown = ("), names)
    assert len(names["shown"]["profile"]["variance"]) == 2


def test_the_page_answers_for_it(model):
    own.register(model)
    found = answer({"a.architecture": "own", "a.depth": "6", "a.std_output": "2"})
    assert "OwnModel" in found["python"]
    assert len(found["charts"]) == 2
    assert found["sentences"]["a"]
    assert answer({})["python"] == answer({"a.architecture": "own"})["python"]


def test_what_cannot_be_shown_is_refused(tmp_path):
    path = tmp_path / "plain.py"
    path.write_text(NET)
    with pytest.raises(SigpropError, match="junction"):
        own.register(own.OwnModel(f"{path}:Net"))
