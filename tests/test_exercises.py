"""Exercises for someone new: each adds one file to its package and registers once, and nothing else is touched.

The file lies in a temporary folder that counts as part of the package for the time of a test. What stands here is what
CONTRIBUTING lists.
"""

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import sigprop as sp
from sigprop.capture.capture import RULES as TORCH_RULES
from sigprop.checks.registry import CHECKS
from sigprop.models.layers import REFERENCE
from sigprop.monitoring.findings.base import RULES as RUN_RULES
from sigprop.monitoring.sinks.base import SINKS
from sigprop.plans.export import TARGETS
from sigprop.plans.recipes.rows import RECIPES
from sigprop.plans.scaling.width_rules import WIDTH_RULES
from sigprop.theory.activations import get
from sigprop.theory.activations.base import ACTIVATIONS

EXERCISES = {
    "an activation": (
        ACTIVATIONS,
        '''
from sigprop.theory.activations.base import ActivationFunction, register


@register("cube")
class Cube(ActivationFunction):
    """`x^3`: moments by quadrature, unless the class gives them in closed form."""

    name = "cube"

    def __call__(self, x):
        return x**3
''',
    ),
    "an op with its rule": (
        TORCH_RULES,
        '''
from dataclasses import dataclass

from sigprop.capture import Field, rule
from sigprop.theory.ops.scale import Scale


@dataclass(frozen=True, eq=False)
class Radians(Scale):
    """`y = pi / 180 x`."""

    factor: float = 0.017453292519943295


@rule("deg2rad")
def radians(capture, call, input):
    make = lambda _: capture.apply(Radians(), input.node)
    return Field(input.layout, make, input.sources, call=call, inputs=(input,))
''',
    ),
    "a recipe": (
        RECIPES,
        """
from sigprop.plans.recipes.rows import recipe
from sigprop.plans.recipes.rows import init_all
from sigprop.results import Init


@recipe("two_thirds", paper="Me 2027", applies_to="any model", effect="variance 2 / (3 fan_in)")
def two_thirds(structure):
    return init_all(structure, lambda item, role, size: Init("normal", std=(2 / 3 / item.fan_in) ** 0.5))
""",
    ),
    "a width rule": (
        WIDTH_RULES,
        """
from sigprop.plans.scaling.width_rules import WIDTH_RULES, WidthRule


@WIDTH_RULES.register("halfway")
def halfway(alignment):
    return WidthRule("halfway", readout=0.75, change=0.25, alpha_hidden=0.5, alpha_readout=1.0)
""",
    ),
    "a finding of check": (
        CHECKS,
        """
from sigprop.checks.registry import check
from sigprop.results.report import Datum, Finding


@check("few_parameters", "sizes", "a model with hardly any parameters")
def few_parameters(subject):
    count = sum(parameter.numel() for parameter in subject.model.parameters())
    if count < 100:
        yield Finding("few_parameters", "sizes", "note", f"only {count} parameters", "Nothing to learn with.",
                      evidence=(Datum("parameters", count, "weights"),))
""",
    ),
    "a finding of watch": (
        RUN_RULES,
        """
from sigprop.monitoring.findings.base import finding, seen, warning


@finding("long_run", "loss")
def long_run(history, context):
    if history.losses and history.losses[-1][0] > 1000:
        yield warning(title="a thousand steps", cause="Somebody waits.", evidence=(seen("steps", 1000.0),))
""",
    ),
    "a sink": (
        SINKS,
        """
from sigprop.monitoring.sinks.base import sink


@sink
class Memory:
    name = "memory"
    written = []

    def __init__(self, folder):
        pass

    def write(self, step, scalars):
        self.written.append((step, scalars))

    def tell(self, step, finding):
        pass

    def close(self):
        pass
""",
    ),
    "an export target": (
        TARGETS,
        """
from sigprop.plans.export.targets import TARGETS


@TARGETS.register("names")
def written(plan):
    return f"NAMES = {[row.name for row in plan.parameters]!r}", [f"{row.name}: its values" for row in plan.parameters]
""",
    ),
    "a reference network": (
        REFERENCE,
        """
from dataclasses import dataclass

from torch import nn

from sigprop.models.layers import reference


@dataclass(frozen=True)
class LineConfig:
    width: int = 8


@reference("line", LineConfig)
def line(**settings):
    return nn.Linear(LineConfig(**settings).width, 1)
""",
    ),
}


@pytest.fixture
def add(tmp_path, monkeypatch):
    """Put the file of an exercise beside those of its package, until the test is over."""
    undone = []

    def write(title: str) -> None:
        registry, text = EXERCISES[title]
        (tmp_path / "mine.py").write_text(text.lstrip())
        package = importlib.import_module(registry.package)
        before = set(registry)
        package.__path__.append(str(tmp_path))
        registry._read = False
        undone.append((registry, package, before))

    yield write
    for registry, package, before in undone:
        for name in set(registry) - before:
            registry.remove(name)
        package.__path__.remove(str(tmp_path))
        sys.modules.pop(f"{registry.package}.mine", None)
        vars(package).pop("mine", None)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))


def test_an_activation(add):
    add("an activation")
    assert float(get("cube").second_moment(2.0)) == pytest.approx(15 * 2.0**3)


def test_an_op_with_its_rule(add):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(16, 32), nn.Linear(32, 4)

        def forward(self, x):
            return self.head(100 * torch.deg2rad(self.first(x)))

    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    add("an op with its rule")
    predicted = sp.predict(Net, x, verify=0)["head"]
    measured = sp.measure(None, x, build=Net, seeds=30)["head"]
    assert predicted.status == "exact"
    assert abs(predicted.variance - measured.variance) < 4 * measured.errors["variance"]


def test_a_recipe(add):
    add("a recipe")
    made = sp.plan(mlp(), "two_thirds", batch=torch.zeros(2, 16))
    assert made["0.weight"].init.std == pytest.approx((2 / 3 / 16) ** 0.5)


def test_a_width_rule(add):
    add("a width rule")
    made = sp.plan(nn.Sequential(nn.Linear(16, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 4)),
                   "lecun", width="halfway", batch=torch.randn(2, 16))  # fmt: skip
    assert made["2.weight"].lr == pytest.approx((512 / 128) ** -0.75)
    assert made.meta["width"] == "halfway"


def test_a_finding_of_check(add):
    add("a finding of check")
    report = sp.check(nn.Linear(4, 2), torch.zeros(3, 4))
    assert [item.title for item in report["few_parameters"]] == ["only 10 parameters"]


def test_a_finding_of_watch(add):
    from sigprop.monitoring.findings.base import RunContext, findings_of
    from sigprop.monitoring.history import History

    add("a finding of watch")
    history = History()
    history.add_loss(1001, 1.0)
    (found,) = findings_of(history, RunContext())
    assert (found.name, found.group, found.severity) == ("long_run", "loss", "warning")


def test_a_sink(add, tmp_path):
    add("a sink")
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with sp.Watch(model, every=1, folder=tmp_path / "run", sinks=["memory"]) as watch:
        loss = model(torch.ones(2, 16)).square().mean()
        loss.backward()
        optimizer.step()
        watch.step(loss)
    (written,) = SINKS["memory"].written
    assert written[1]["run/loss"] == pytest.approx(loss.item())


def test_an_export_target(add):
    add("an export target")
    exported = sp.plan(mlp(), "lecun", batch=torch.zeros(2, 16)).export("names")
    assert "'0.weight'" in exported.text
    assert len(exported.not_expressed) == 4


def test_a_reference_network(add):
    from sigprop.models import build

    add("a reference network")
    assert build("line", width=5).in_features == 5


def test_what_a_test_adds_is_gone_after_it(add):
    assert not {"cube", "two_thirds", "halfway", "few_parameters", "memory", "names", "line"} & {
        name for registry, _ in EXERCISES.values() for name in registry
    }


def test_contributing_lists_the_exercises_and_its_words_are_theirs():
    page = Path("CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| (an? [a-z ]+) \| `(sigprop/[\w/]+)/mine\.py`", page, re.MULTILINE)
    assert {name: folder.replace("/", ".") for name, folder in rows} == {
        name: registry.package for name, (registry, _) in EXERCISES.items()
    }
