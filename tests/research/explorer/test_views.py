"""What the explorer shows is what the blueprints predict; its Python makes the same; its sentences go by the limits."""

import pytest

from sigprop.blueprints import Transformer, predict
from sigprop.errors import InputError, UnknownNameError
from sigprop.research.explorer.controls import ARCHITECTURES, Choice, ExplorerSettings, Range, read_settings
from sigprop.research.explorer.page import answer, python
from sigprop.research.explorer.views import curves_of, sensitivity, verdict, view
from sigprop.research.phase.predicted import block_factor
from sigprop.research.stack_laws import stack_laws

SHORT = {"encoder": "8", "decoder": "3", "vit": "4", "mlp": "6", "mixer": "4", "resnet": "1"}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_shows_curves_and_python_that_makes_them(name):
    given = {"architecture": name, "depth": SHORT[name], "width": "64"}
    found = view(read_settings(given))
    assert found.sentences
    assert all(
        len(found.curves[key]) == len(found.curves["variance"]) for key in ("grad_variance", "token_correlation")
    )
    assert bool(found.curves["entropy"]) == (name in ("encoder", "decoder", "vit"))
    space: dict = {}
    exec(python({"a": found}).replace("print(", "profile = ("), space)
    assert curves_of(space["profile"]) == found.curves
    assert space["plane_a"].chi == found.plane.chi


@pytest.mark.parametrize("recipe", ARCHITECTURES["encoder"].controls["recipe"].names)
def test_every_recipe_of_a_transformer_is_predicted(recipe):
    found = view(ExplorerSettings(depth=6, width=128, recipe=recipe))
    assert len(found.curves["variance"]) == 6
    assert found.plane is not None


def test_the_plane_holds_the_settings_themselves():
    """At gain 1 and its own skip the plane has chi_J of the blueprint."""
    from sigprop.research.phase.predicted import plane_around

    blueprint = Transformer(depth=6, width=128, init="gpt2", norm_placement="post", skip_scale=0.9)
    plane = plane_around(blueprint, [0.5, 1.0], [0.9, 1.2])
    assert plane.chi[0][1] == pytest.approx(float(block_factor(blueprint)), rel=1e-12)
    assert plane.settings["block"] == 5


def test_a_shallow_plane_keeps_the_draws_of_the_whole():
    """GPT-2 divides by the depth: the plane of its first blocks must not divide by theirs."""
    from dataclasses import replace

    from sigprop.research.phase.predicted import plane_around

    deep = Transformer(depth=60, width=128, init="gpt2")
    wrong = float(block_factor(replace(deep, depth=8)))
    assert plane_around(deep, [1.0], [1.0]).chi[0][0] - 1 < 0.5 * (wrong - 1)


def test_controls_reach_the_prediction():
    """Every control of an encoder changes something that is shown."""
    base = ExplorerSettings(depth=6, width=128)
    shown = view(base)
    others = {"depth": 7, "width": 192, "norm": "post", "activation": "relu", "dropout": 0.3, "recipe": "kaiming",
              "skip": 0.5, "branch": 0.5, "query_key": 2.0}  # fmt: skip
    assert set(others) == set(ARCHITECTURES["encoder"].controls)
    for key, value in others.items():
        changed = view(ExplorerSettings(**{"depth": 6, "width": 128, key: value}))
        assert changed.curves != shown.curves, key


def test_sentences_go_by_the_limits_of_check():
    flat = {"variance": [1.0, 1.0], "grad_variance": [1.0, 1.0], "token_correlation": [0.1, 0.2], "entropy": []}
    assert [severity for severity, _ in verdict(flat)] == ["healthy"]
    assert verdict(flat | {"grad_variance": [1e5, 1.0]})[0][0] == "problem"
    assert verdict(flat | {"grad_variance": [1.0, 200.0]})[0][0] == "warning"
    assert verdict(flat | {"variance": [1.0, 1e9]})[0] == (
        "problem", "the signal grows 1e+09x in variance from first to last block",
    )  # fmt: skip
    assert verdict(flat, 20.0)[0][0] == "problem"
    assert "at block 2" in verdict(flat | {"token_correlation": [0.5, 0.95]})[0][1]


def test_a_stack_that_overflows_is_told_not_drawn():
    found = view(ExplorerSettings(depth=128, norm="none", recipe="kaiming", query_key=4.0, skip=2.0, branch=2.0))
    assert found.sentences[0][0] == "problem"


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"architecture": "perceptron"}, UnknownNameError, "perceptron"),
        ({"depth": "1e9"}, InputError, "from 2 to 128"),
        ({"depth": "nan"}, InputError, "depth"),
        ({"width": "<script>"}, InputError, "width"),
        ({"norm": "left"}, UnknownNameError, "left"),
        ({"colour": "red"}, UnknownNameError, "colour"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given, error, words):
    with pytest.raises(error, match=words):
        read_settings(given)


def test_sides_are_named():
    with pytest.raises(InputError, match=r"a\.NAME"):
        answer({"depth": "4"})


def test_starts_are_allowed():
    for item in ARCHITECTURES.values():
        for key, control in item.controls.items():
            value = getattr(item.start, key)
            assert value in control.names if isinstance(control, Choice) else control.low <= value <= control.high
            assert isinstance(control, (Choice, Range))


def test_predict_gives_the_curves():
    rows = predict(Transformer(depth=6, width=128, heads=2, activation="gelu"), scores=True)
    assert view(ExplorerSettings(depth=6, width=128)).curves == curves_of(rows)


@pytest.mark.parametrize("recipe", ["xavier", "deepscale"])
def test_sensitivity_is_that_of_the_laws_of_a_stack(recipe):
    settings = read_settings({"architecture": "encoder", "norm": "post", "depth": "48", "recipe": recipe})
    blueprint = ARCHITECTURES["encoder"].blueprint(settings)
    found = sensitivity(blueprint, predict(blueprint))
    assert found == pytest.approx(stack_laws(blueprint).sensitivity_mean, rel=1e-6)
    told = [text for _, text in view(settings).sentences if "overwrite" in text]
    assert bool(told) == (recipe == "xavier")
