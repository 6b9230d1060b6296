"""Every rule can say each of the four verdicts: stored numbers, and the same numbers spoilt on purpose."""

import copy

import pytest

from studies.dslm_start import SHAPES
from studies.reproduction import VERDICTS, data_of, records
from studies.reproductions import reproductions

ITEMS, STORED = reproductions(), records()


def stored(name):
    """Stored data with what the budget asks for."""
    data = copy.deepcopy(data_of(STORED.get((name, "full")) or STORED[name, "small"]))
    for key, least in ITEMS[name].budget.items():
        enough = list(range(int(least)))
        data[key] = enough if isinstance(data.get(key, enough), list) and key == "seeds" else least
    return data


def scaled_end(factor):
    def spoil(data):
        for case in data["cases"]:
            case["measured"] = [value * factor for value in case["predicted"]]
            case["standard_error"] = [0.01 * value for value in case["measured"]]

    return spoil


def steeper(power):
    def spoil(data):
        for case in data["cases"]:
            case["measured"] = [value * (at + 1) ** power for at, value in enumerate(case["predicted"])]

    return spoil


def critical_share(share, ordered=None):
    """The first part of every row stays critical, the rest is chaotic; the second panel may be replaced."""

    def spoil(data):
        for panel in data["panels"]:
            panel["chi"] = [[1.0 if i < share * len(row) else 2.0 for i in range(len(row))] for row in panel["chi"]]
        if ordered is not None:
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


def reaching(*lengths):
    """Accuracy that is lost at these depths, in correlation lengths, of one row after the other."""

    def spoil(data):
        for row, length in zip(data["rows"], lengths * len(data["rows"]), strict=False):
            row["depths"] = list(range(1, int(60 * row["length"]) + 2))
            accuracy = [0.8 if depth < length * row["length"] else 0.1 for depth in row["depths"]]
            row |= {"32-bit floats": accuracy, "64-bit floats": accuracy}

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


def ending_at(value, early):
    """Correlations of vanilla stacks that end at a value; DeepScale's after 12 layers."""

    def spoil(data):
        for record in data.values():
            curve = record["measured"]["token_correlation"]
            curve[11], curve[-1] = (early, early) if "deepscale" in record["case"] else (0.5, value)

    return spoil


def off_by(errors, share):
    """Predictions of the first part of all rows off by so much, the others right."""

    def spoil(data):
        for place, row in enumerate(data["rows"]):
            for column in ("variance", "grad_variance"):
                row[column] = [1.0 + errors * (place < share * len(data["rows"])), 1.0, 0.0]

    return spoil


def correlations(above, below, attention=0.9):
    def spoil(data):
        for row in data["rows"]:
            change = above if row["given"] > 0.65 else below
            row["measured"] = row["given"] + change if row["block"] == "mlp" else attention

    return spoil


def grown(orders):
    def spoil(data):
        for row in data["rows"]:
            row["growth"] = [10.0**orders if row["factor"] == 2 else 1.0] * 3

    return spoil


def norms(pre, post):
    """Norms of the last layer as powers of depth; Post-LN's over its first."""

    def spoil(data):
        for row in data["rows"]:
            power, size = (pre, 0.5) if row["placement"] == "pre" else (0.0, 1.0)
            row["norms"] = [size / post if row["placement"] == "post" else size] * 2
            row["norms"][-1] = size * row["depth"] ** power

    return spoil


def powers_of_depth(**slopes):
    def spoil(data):
        for rule, rows in data["exponents"].items():
            for row in rows:
                row["slope"] = slopes[rule]

    return spoil


CRITICAL = (critical_share(1.0), critical_share(0.7), critical_share(0.1))
SPOILT = {
    "dslm-table20": (percent(0.01), percent(500.0, 0.2), percent(500.0)),
    "dslm-figures1-4": (predicted_by(1.01), predicted_by(1.1), predicted_by(3.0)),
    "dslm-depth-width": (off_by(0.0, 1.0), off_by(0.5, 0.05), off_by(0.5, 1.0)),
    "dslm-figure5": (correlations(-0.05, 0.05), correlations(-0.05, -0.01), correlations(0.02, 0.05)),
    "dslm-figure6": (ending_at(0.88, 0.2), ending_at(0.7, 0.2), ending_at(0.99, 0.2)),
    "dslm-table24": (counted(0.0), counted(8.0), counted(100.0)),
    "dslm-query-key": (grown(4.0), grown(2.0), grown(0.0)),
    "apjn-figure1": (steeper(0.0), steeper(0.2), steeper(1.0)),
    "apjn-figure2": CRITICAL,
    "apjn-figure4": CRITICAL,
    "apjn-figure5": CRITICAL,
    "apjn-figure6": CRITICAL,
    "apjn-figure7": (critical_share(1.0, 0.5), critical_share(0.7, 0.5), critical_share(1.0, 1.5)),
    "apjn-figure8": (spanning(40), spanning(20), spanning(2)),
    "apjn-figure9": (faster(1.0), faster(1.3), faster(4.0)),
    "apjn-figure10": (scaled_end(0.95), scaled_end(0.6), scaled_end(1e6)),
    "apjn-figure11": (reaching(28.0), reaching(15.0), reaching(10.0, 40.0)),
    "preln-gradients": (norms(-0.5, 2.0), norms(-0.5, 0.5), norms(0.0, 0.5)),
    "effective-slopes": (groups(0.0, 0.0), groups(0.5, 0.0), groups(0.5, 0.5)),
    "abc-table3": (sloped(0.0), sloped(0.1), sloped(0.5)),
    "abc-alignment": (aligned(1), aligned("17/20"), aligned("1/2")),
    "others-completep-depth": (
        powers_of_depth(none=0.7, sqrt=0.0, linear=0.0),
        powers_of_depth(none=0.7, sqrt=0.0, linear=0.3),
        powers_of_depth(none=0.1, sqrt=0.0, linear=0.7),
    ),
    "others-entropy-collapse": (flat_entropy(0.0), flat_entropy(0.08), flat_entropy(0.6)),
}  # fmt: skip


@pytest.mark.parametrize("name", ITEMS)
def test_the_rule_can_say_each_verdict(name):
    found = []
    for spoil in SPOILT[name]:
        data = stored(name)
        spoil(data)
        found.append(ITEMS[name].judged(data).verdict)
    data = stored(name)
    SPOILT[name][0](data)
    found.append(ITEMS[name].judged(too_small(name, data)).verdict)
    assert tuple(found) == VERDICTS


def too_small(name, data):
    """A run below its budget; of two items without one, stacks that are too shallow."""
    for key in ITEMS[name].budget:
        data[key] = data[key][:1] if isinstance(data[key], list) else 1
    if not ITEMS[name].budget:
        for record in data.values():
            record["depth"] = 12
            for columns in (record["predicted"], record["measured"]):
                columns |= {key: values[:12] for key, values in columns.items()}
    return data
