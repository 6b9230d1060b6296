"""`sigprop critical` and `sigprop phase`."""

import json

import pytest
import typer
from typer.testing import CliRunner

from sigprop.cli.critical import critical_command
from sigprop.cli.research.phase import parse_range, phase_command
from sigprop.errors import InputError, SigpropError
from sigprop.research.criticality import advice, architecture, criticality, trajectory
from sigprop.research.criticality.summary import prescription
from sigprop.research.phase.diagram import PhaseDiagram

app = typer.Typer()
app.command("critical")(critical_command)
app.command("phase")(phase_command)


def run(*arguments):
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def test_critical_json_and_table():
    data = json.loads(run("critical", "gelu", "--json"))
    assert [round(point["sigma_w"], 4) for point in data["points"]] == [2.0, 1.4082]
    assert "1.408211" in run("critical", "gelu")
    assert "0.323807" in run("critical", "erf", "--norm", "preactivation")
    assert "Critical everywhere" in run("critical", "erf", "--norm", "preactivation", "--residual", "1")
    assert "no critical line" in run("critical", "softplus")
    leaky = json.loads(run("critical", "leaky_relu", "--set", "slope=1", "--json"))
    assert leaky["points"][0]["sigma_w"] == pytest.approx(1.0)


def test_predicted_and_measured_phase(tmp_path):
    plane = ("--sigma-w", "0.5:2.5:5", "--sigma-b", "0:0.8:3")
    theory = PhaseDiagram.from_json(run("phase", "mlp", "--activation", "erf", *plane, "--json"))
    figure = tmp_path / "erf.png"
    options = ("--measure", "--inits", "3", "--depth", "10", "--width", "100", "--figure", str(figure))
    text = run("phase", "mlp", "--activation", "erf", *plane, *options, "--json")
    measured = PhaseDiagram.from_json(text)
    assert figure.stat().st_size > 5000
    for row in range(3):
        for column in range(5):
            assert measured.chi[row][column] == pytest.approx(theory.chi[row][column], rel=0.5)
    assert measured.standard_error is not None
    assert "ordered" in run("phase", "mlp", "--sigma-b", "0", "--residual", "0:1:3", "--sigma-w", "0.5:2:3")


def test_phase_of_another_model():
    small = ("--set", "depth=3", "--set", "width=16", "--sigma-w", "0.5:1.5:2", "--residual", "0:1:2", "--sigma-b", "0")
    theory = json.loads(run("phase", "mixer", *small, "--json"))
    assert len(theory["chi"]) == 2
    measured = json.loads(run("phase", "mixer", *small, "--measure", "--inits", "2", "--json"))
    assert measured["settings"]["model"] == "mixer"


def test_theory_is_drawn_over_other_models(tmp_path):
    small = ("--depth", "4", "--width", "32", "--set", "heads=2", "--sigma-w", "0.3:3:3", "--sigma-b", "0:1:2")
    figure = tmp_path / "vit.png"
    text = run("phase", "vit", *small, "--measure", "--inits", "1", "--figure", str(figure), "--json")
    measured = PhaseDiagram.from_json(text)
    assert measured.settings["depth"] == 4
    assert figure.stat().st_size > 5000
    assert measured.standard_error is not None
    assert all(value != value for row in measured.standard_error for value in row)  # one initialization: null, nan


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("phase", "mlp", "--sigma-w", "3:1:5"), "end lies above its start"),
        (("phase", "mlp", "--sigma-w", "1:3"), "from:to:count"),
        (("phase", "mlp", "--sigma-w", "1:3:1"), "at least 2"),
        (("phase", "mlp", "--sigma-w=-1:3:5"), "not negative"),
        (("phase", "mlp", "--sigma-w", ""), "from:to:count"),
        (("phase", "mlp", "--sigma-b", "0"), "two ranges"),
        (("phase", "mlp", "--residual", "2"), "between 0 and 1"),
        (("phase", "nlp"), "mlp"),
        (("phase", "mlp", "--activation", "gellu"), "gelu"),
        (("phase", "vit", "--activation", "relu", "--sigma-b", "0:1:2"), "--set activation=relu"),
        (("phase", "mlp", "--set", "depth=3"), "other than mlp"),
        (("phase", "transformer", "--measure"), "to be measured"),
        (("critical", "relu", "--residual", "-1"), "residual"),
        (("critical", "relu", "--norm", "layer"), "norm"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(SigpropError, match=message):
        run(*arguments)


def test_ranges():
    assert parse_range("--x", "1:2:3") == [1.0, 1.5, 2.0]
    assert parse_range("--x", "0.5") == [0.5]
    with pytest.raises(InputError, match="finite"):
        parse_range("--x", "0:inf:3")


def test_shares_of_a_phase_diagram_are_not_negative():
    """Was `within 1 % of critical -0%`, the rest of two rounded shares."""
    text = run("phase", "mlp", "--activation", "tanh", "--sigma-w", "0.5:2:3", "--sigma-b", "0.1:1:4")
    assert "within 1 % of critical 0%" in text
    assert "-0" not in text


def half_square_root(x):
    return 0.5 * (x + (x * x + 4).sqrt()) - 1


@pytest.mark.parametrize("activation", ["relu_squared", half_square_root, "softplus"])
def test_nothing_is_prescribed_where_every_initialization_explodes(activation):
    """The squared gradient of `half_square_root` at its only critical point grows to 3e17 within 60 layers."""
    network = architecture(activation)
    result = criticality(network)
    assert prescription(network, result) is None
    told = advice(network, result)
    assert told.startswith("No initialization keeps gradients")
    assert "norm" in told


@pytest.mark.parametrize("activation", ["relu", "tanh", "erf", "elu", "gelu", "silu", "mish"])
def test_what_is_prescribed_keeps_gradients_of_a_real_recursion(activation):
    network = architecture(activation)
    found = prescription(network, criticality(network))
    assert found is not None
    path = trajectory(network, found.sigma_w, found.sigma_b, 200).jacobian
    assert 100.0 ** -abs(found.exponent) / 10 < float(path[199]) < 10 * 100.0 ** abs(found.exponent)
    assert "repels" not in advice(network, criticality(network))


def test_the_answer_comes_first():
    assert run("critical", "tanh").splitlines()[1].startswith("Initialize weights with std 1/sqrt(fan_in)")
