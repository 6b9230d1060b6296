"""The published JSON schemas are those of the code, and hold what the package writes and reads."""

import json

import jsonschema
import pytest
import torch
from torch import nn

import sigprop as sp
from docs.hooks import FOLDER, RESULTS, file_of, json_schema
from sigprop.models import build


def nested():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4, bias=False))


@pytest.fixture(scope="module")
def results():
    torch.manual_seed(0)
    model, batch = nested(), torch.randn(8, 16)
    residual = build("transformer", depth=2, width=32, heads=2)
    nn.init.normal_(model[0].weight, 0.0, 5.0)
    return {
        "profile": [sp.predict(model, batch), sp.measure(model, batch)],
        "plan": [sp.plan(residual, "unit", batch=torch.zeros(1, 8, dtype=torch.long)), sp.plan(model, "kaiming")],
        "report": [sp.check(model, batch)],
        "diff": [sp.diff(nested(), model, batch)],
    }


def stored(name):
    return json.loads((FOLDER / file_of(name)).read_text())


@pytest.mark.parametrize("name", RESULTS)
def test_the_file_is_that_of_the_code(name):
    jsonschema.Draft202012Validator.check_schema(stored(name))
    assert stored(name) == json_schema(name), "run: python docs/hooks.py"


@pytest.mark.parametrize("name", RESULTS)
def test_what_is_written_is_valid_and_a_damaged_file_is_not(name, results):
    for result in results[name]:
        written = json.loads(result.to_json())
        jsonschema.validate(written, stored(name))
        for damage in ({"schema_version": 99}, {"parameters": {}}, {"sort": "new"}):
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(written | damage, stored(name))
        rows = next(value for value in written.values() if isinstance(value, list) and value)
        rows[0]["unknown"] = 1
        with pytest.raises(jsonschema.ValidationError, match="unknown"):
            jsonschema.validate(written, stored(name))


def test_numbers_that_json_lacks():
    rows = [{"name": "site", "depth": 0, "variance": "inf", "grad_variance": None}]
    profile = {"schema_version": 1, "sites": rows, "parameters": [], "meta": {}}
    jsonschema.validate(profile, stored("profile"))
    assert sp.Profile.from_json(json.dumps(profile))["site"].variance == float("inf")
    rows[0]["variance"] = "large"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(profile, stored("profile"))
