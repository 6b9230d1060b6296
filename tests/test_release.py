"""What is published says the same everywhere: version, requirements, commands."""

import re
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import sigprop

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RECIPE = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
CONSTRAINED = ("plot", "mcp", "hf", "accelerate", "lightning")


def requirements(lines):
    """Names and ranges; conda has no markers in a package for all Pythons."""
    return {(item.name, str(item.specifier)) for item in map(Requirement, lines)}


def in_conda(lines):
    return {(CONDA_NAMES.get(name, name), bounds) for name, bounds in requirements(lines)}


def of_recipe(lines):
    return {tuple(f"{line} ".split(" ")[:2]) for line in lines}


def extra(name):
    """The requirements of an extra, with those of the extras it names."""
    for line in PROJECT["optional-dependencies"][name]:
        item = Requirement(line)
        if item.name != PROJECT["name"]:
            yield line
        for other in sorted(item.extras if item.name == PROJECT["name"] else ()):
            yield from extra(other)


def test_one_version():
    told = {
        PROJECT["version"],
        sigprop.__version__,
        RECIPE["context"]["version"],
        yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"],
    }
    assert len(told) == 1


def test_the_conda_recipe_asks_for_what_the_package_asks_for():
    python = ("python", PROJECT["requires-python"])
    asked = RECIPE["requirements"]
    assert of_recipe(asked["run"]) == {python, *in_conda(PROJECT["dependencies"])}
    assert of_recipe(asked["run_constraints"]) == set().union(*(in_conda(extra(name)) for name in CONSTRAINED))
    assert of_recipe(asked["host"]) == {python, ("pip", ""), ("hatchling", ">=1.24")}
    commands = dict(line.split(" = ") for line in RECIPE["build"]["python"]["entry_points"])
    assert commands == PROJECT["scripts"]
    assert RECIPE["about"]["license"] == PROJECT["license"]
    assert RECIPE["about"]["summary"] == PROJECT["description"]


def test_at_most_six_packages_beside_torch():
    brought = {
        canonicalize_name(Requirement(line).name) for line in metadata.requires("torch") or () if "extra" not in line
    }
    asked = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    assert len(asked - brought - {"torch"}) <= 6


def test_constraints_pin_all_that_development_needs():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    pinned = {canonicalize_name(name): pin for name, pin in pins.items()}
    for line in (*PROJECT["dependencies"], *extra("dev")):
        item = Requirement(line)
        if item.marker is None or item.marker.evaluate({"python_version": "3.11"}):
            assert item.specifier.contains(pinned[canonicalize_name(item.name)]), line
    assert list(pins) == sorted(pins, key=str.lower)


@pytest.mark.parametrize("page", ["docs/do/places.md"])
def test_the_pages_name_this_version(page):
    assert set(re.findall(r"\bv(\d+\.\d+\.\d+)\b", (ROOT / page).read_text())) == {sigprop.__version__}
