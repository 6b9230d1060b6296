"""Names are text, whatever they hold: in tables, in errors, in JSON."""

import json

import pytest
import torch
from torch import nn

import sigprop as sp
from sigprop.errors import SigpropError
from sigprop.grid import clean
from sigprop.plans import Plan
from sigprop.results import Profile

NAMES = [
    "[/red]",
    "[bold]shown[/bold]",
    "[link=file:///etc/passwd]",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x9b2J",
    "<script>alert(1)</script>",
    "&lt;b&gt;",
    ":warning:",
    "a\nb\rc\td",
    "\\",
    "\\[x]",
    "\u202eesrever",
    "\u0000",
    "'; drop table runs; --",
    "{name}",
    "%s%n",
    "${HOME}",
    "ä 層 🧪",
    " ",
]


def model_with(name):
    model = nn.Sequential()
    model.add_module(name, nn.Linear(6, 8))
    model.add_module("last", nn.Linear(8, 3))
    return model


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_module_of_any_name_is_shown_as_it_is_called(name):
    model, x = model_with(name), torch.randn(4, 6)
    profile, actual = sp.predict(model, x), sp.measure(model, x)
    plan = sp.plan(model, "lecun", batch=x)
    tables = [profile.table(all=True), actual.table(all=True), plan.table(all=True), profile.compare(actual).table()]
    text = "\n".join(table.text(250) for table in tables)
    assert all(clean(name).strip() in table.text(250) for table in tables[:3])
    assert "<script>" not in "".join(table.html() for table in tables)
    text += f"{profile}{actual}{plan}{profile!r}{plan!r}"
    assert not [letter for letter in text if not letter.isprintable() and letter != "\n"]
    assert Profile.from_json(profile.to_json())[name].variance == profile[name].variance
    assert [row.name for row in Plan.from_json(plan.to_json())] == [row.name for row in plan]
    assert json.loads(actual.to_json())["sites"][0]["name"] == name


def test_the_place_in_an_output_is_shown():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 4)

        def forward(self, x):
            y = self.layer(x)
            return {"last_hidden_state": y, "pooler_output": y * 2.0}

    profile = sp.measure(Named(), torch.randn(3, 6))
    assert "(output)[pooler_output]" in profile.table(all=True).text()


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_an_unknown_name_is_told_on_one_line(name):
    profile = sp.measure(nn.Linear(6, 3), torch.randn(4, 6))
    with pytest.raises(SigpropError) as caught:
        profile[name + "?"]
    assert str(caught.value).isprintable()
