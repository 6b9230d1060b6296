"""Every rule can say each of the four verdicts: stored numbers, and the same numbers spoilt on purpose."""

import copy

import pytest

from studies.dslm_table24 import SHAPES
from studies.reproduction import VERDICTS, data_of, records, verdict
from studies.reproductions import reproductions

ITEMS, STORED = reproductions(), records()


def stored(name):
    return copy.deepcopy(data_of(STORED.get((name, "full")) or STORED[name, "small"]))


def test_one_rule_makes_the_four_verdicts():
    found = [verdict(True, True), verdict(False, True), verdict(False, False), verdict(True, True, decided=False)]
    assert tuple(found) == VERDICTS


@pytest.mark.parametrize("name", [name for name, item in ITEMS.items() if item.budget])
def test_a_run_below_its_budget_is_too_small_to_tell(name):
    item, data = ITEMS[name], stored(name)
    for key, _ in item.budget:
        data[key] = data[key][:1] if isinstance(data.get(key), list) else 1
    found = item.judged(data)
    assert found.verdict == "too small to tell"
    assert found.why.startswith("Too small to tell")


def scaled_end(factor):
    def spoil(data):
        for case in data["cases"]:
            case["measured"] = [value * factor for value in case["predicted"]]

    return spoil


def steeper(power):
    def spoil(data):
        for case in data["cases"]:
            case["slope_measured"] = case["slope_predicted"] + power
            case["measured"] = [value * (layer + 1) ** power for layer, value in enumerate(case["measured"])]

    return spoil


def critical_share(share):
    """The first part of every row stays critical, the rest is chaotic."""

    def spoil(data):
        for panel in data["panels"]:
            panel["chi"] = [[1.0 if i < share * len(row) else 2.0 for i in range(len(row))] for row in panel["chi"]]

    return spoil


def vit(share, ordered):
    def spoil(data):
        critical_share(share)(data)
        data["panels"][1]["chi"] = [[ordered]]

    return spoil


def spanning(orders):
    def spoil(data):
        for panel in data["panels"]:
            panel["chi"] = [[1.0, 10.0**orders]]

    return spoil


def faster(factor):
    def spoil(data):
        for case in data["cases"]:
            case["rate"] *= factor

    return spoil


def aligned(alpha):
    def spoil(data):
        for found in data["measured"].values():
            found["medians"] |= {"alpha_hidden": str(alpha), "alpha_readout": str(alpha)}

    return spoil


def sloped(size):
    def spoil(data):
        for row in data["rows"]:
            row["slope"] = (row["theory"] or 0.0) + size

    return spoil


def groups(queries, others):
    def spoil(data):
        for row in data["rows"]:
            row["slope"] = queries if row["group"] in "QK" else others

    return spoil


def percent(value, share=1.0):
    def spoil(data):
        names = list(data["percentiles"])
        for name in names[: int(share * len(names))]:
            data["percentiles"][name] = [[value] * 3 for _ in data["percentiles"][name]]

    return spoil


def counted(points):
    """Compute that lies so many percentage points above the paper's, shape by shape."""

    def spoil(data):
        for item in data["shapes"]:
            item["flops"] = 1.0 + (SHAPES[item["layers"], item["width"]] + points * (item["width"] < 1024)) / 100.0

    return spoil


def flat_entropy(shift):
    def spoil(data):
        for row in data["rows"]:
            row["entropy"] = [[value + shift for value in values] for values in row["entropy"]]

    return spoil


def predicted_by(factor):
    def spoil(data):
        for record in data.values():
            for column in ("variance", "grad_variance"):
                record["predicted"][column] = [value * factor for value in record["measured"][column]]

    return spoil


def trained(powers):
    def spoil(data):
        data |= {"epochs": 10.0, "seeds": [0, 1, 2]}
        accuracy = [0.99 if power in powers else 0.1 for power in data["powers"]]
        data["panel"]["accuracy"] = accuracy

    return spoil


SPOILT = {
    "apjn-figure1": (steeper(0.0), steeper(0.2), steeper(1.0)),
    "apjn-figure2": (critical_share(1.0), critical_share(0.7), critical_share(0.1)),
    "apjn-figure4": (critical_share(1.0), critical_share(0.7), critical_share(0.1)),
    "apjn-figure5": (critical_share(1.0), critical_share(0.7), critical_share(0.1)),
    "apjn-figure6": (critical_share(1.0), critical_share(0.7), critical_share(0.1)),
    "apjn-figure7": (vit(1.0, 0.5), vit(0.7, 0.5), vit(1.0, 1.5)),
    "apjn-figure8": (spanning(40), spanning(20), spanning(2)),
    "apjn-figure9": (faster(1.0), faster(1.3), faster(4.0)),
    "apjn-figure10": (scaled_end(0.95), scaled_end(0.6), scaled_end(1e6)),
    "apjn-figure12": (trained((-3, -2, -1, 0, 1)), trained((0, 1)), trained(())),
    "abc-alignment": (aligned(1), aligned("17/20"), aligned("1/2")),
    "abc-table3": (sloped(0.0), sloped(0.1), sloped(0.5)),
    "effective-slopes": (groups(0.0, 0.0), groups(0.5, 0.0), groups(0.5, 0.5)),
    "dslm-table20": (percent(0.01), percent(500.0, 0.2), percent(500.0)),
    "dslm-table24": (counted(0.0), counted(8.0), counted(100.0)),
    "dslm-figures1-4": (predicted_by(1.01), predicted_by(1.1), predicted_by(3.0)),
    "others-entropy-collapse": (flat_entropy(0.0), flat_entropy(0.08), flat_entropy(0.6)),
}


@pytest.mark.parametrize("name", SPOILT)
def test_the_rule_can_say_all_that_it_must(name):
    found = []
    for spoil in SPOILT[name]:
        data = stored(name)
        spoil(data)
        found.append(ITEMS[name].judge(data).verdict)
    assert tuple(found) == VERDICTS[:3]
