"""Every rule can say each of the four verdicts: stored numbers, and the same numbers spoilt on purpose."""

import copy

import pytest

from studies.dslm_start import SHAPES
from studies.dslm_training import TABLE10, TABLE12
from studies.reproduction import VERDICTS, data_of, records
from studies.reproductions import reproductions

ITEMS, STORED = reproductions(), records()
LIKE = {"dslm-masked-pieces": "dslm-table7"}
"""Items without a record take the data of another that has the same form."""


def stored(name):
    """Stored data with what the budget asks for."""
    own = LIKE.get(name, name)
    data = copy.deepcopy(data_of(STORED.get((own, "full")) or STORED[own, "small"]))
    for key, least in ITEMS[name].budget.items():
        enough = list(range(int(least)))
        data[key] = enough if isinstance(data.get(key, enough), list) and key == "seeds" else least
    return data


# -- what is measured at the start


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


# -- what is trained


def losses(*values, key="methods"):
    """The losses of all runs of one method after the other, at three seeds."""

    def spoil(data):
        for item, value in zip(data[key], values, strict=True):
            item["runs"] = [{"rate": 0.1, "seed": seed, "last": value} for seed in range(3)]

    return spoil


def shapes(xavier, deepscale):
    """Shallow, middle and deepest of both methods."""
    return losses(*(value for pair in zip(xavier, deepscale, strict=True) for value in pair))


def pairs(**cells):
    """Losses of `pre` and `post`: shallow Xavier, deep DeepScale."""

    def spoil(data):
        data["methods"] = []
        for placement, values in cells.items():
            for label, value in zip(("shallow, Xavier", "deep, DeepScale"), values, strict=True):
                runs = [{"rate": 0.1, "seed": seed, "last": value + 0.001 * seed} for seed in range(3)]
                item = {"placement": placement, "label": label, "layers": 1, "width": 1, "runs": runs}
                data["methods"].append(item)

    return spoil


def by_method(best, others):
    def spoil(data):
        for item in data["methods"]:
            value = best if item["label"] == "DeepScaleLM" else others if item["label"] in TABLE10 else 9.0
            item["runs"] = [{"rate": 0.1, "seed": seed, "last": value + 0.02 * seed} for seed in range(3)]

    return spoil


def cast(baseline, deepscale):
    def spoil(data):
        for item, rise in zip(data["methods"], (baseline, deepscale), strict=True):
            seen = {"float32": 2.0, "E5M2": 2.0 + rise, "E4M3": 2.0 + rise}
            item["runs"] = [{"rate": 0.1, "seed": 0, "last": 2.0, "seen": seen}]

    return spoil


def parts(without, with_scales):
    return losses(*(without if TABLE12[label] == float("inf") else with_scales for label in TABLE12))


def profiles(power, fall, kept):
    """A linear variance, a gradient with a power of depth, and first-to-last ratios of the two others."""

    def spoil(data):
        for item in data["methods"]:
            depth = len(item["at the start"]["gradient"])
            ratio = {"beta^2 = 0.1": fall, "beta^2 = 1/N": kept}.get(item["label"])
            layers = range(1, depth + 1)
            gradient = [layer**power for layer in layers] if ratio is None else [ratio, *[1.0] * (depth - 1)]
            item["at the start"]["gradient"] = [1.0] * depth if ratio else gradient
            seen = {"variance": list(layers), "gradient": gradient}
            item["runs"] = [{"rate": 0.1, "seed": 0, "last": 2.0, "seen": seen}]

    return spoil


def accurate(baseline, deepscale):
    def spoil(data):
        for item, value in zip(data["models"], (baseline, deepscale), strict=True):
            item["runs"] = [{"rate": 0.1, "seed": seed, "last": 1.0, "accuracy": value} for seed in range(3)]

    return spoil


def warmed(post, pre):
    """Losses without warm-up of both placements; with it all are 2."""

    def spoil(data):
        data["rates"] = [0.1]
        for item in data["methods"]:
            value = 2.0 if item["warmup"] else {"post": post, "pre": pre}[item["placement"]]
            item["runs"] = [{"rate": 0.1, "seed": seed, "last": value} for seed in range(3)]

    return spoil


def partly(share, plain=0.1, skip=0.9):
    """The share of points that LayerNorm with mu = 1 trains; without a skip only those close to the line train."""

    def spoil(data):
        for panel in data["panels"]:
            count = len(panel["chi"])
            if panel["mu"] == 0:
                panel["chi"] = [1.0, *[3.0] * (count - 1)]
                panel["accuracy"] = [0.9, *[plain] * (count - 1)]
            else:
                trained = share if panel["norm"] != "none" else 0.5 if skip > 0.6 else 0.0
                panel["accuracy"] = [0.9 if place < trained * count else 0.1 for place in range(count)]

    return spoil


def trained_powers(powers):
    def spoil(data):
        data["panel"]["accuracy"] = [0.99 if power in powers else 0.1 for power in data["powers"]]

    return spoil


def accuracies(*rows):
    def spoil(data):
        for panel, row in zip(data["panels"], rows, strict=True):
            panel["accuracy"] = [row] * len(panel["accuracy"]) if isinstance(row, float) else list(row)

    return spoil


def strategies(accuracy, spikes):
    def spoil(data):
        for item in data["strategies"]:
            name = item["strategy"]
            one = {"rate": 0.1, "seed": 0, "last": 1.0, "accuracy": accuracy[name], "spikes": spikes.get(name, 0)}
            item["runs"] = [one]

    return spoil


def ways(standard, tangent):
    return losses(standard, tangent, key="strategies")


def rates_over_widths(key, **powers):
    """The best rate of each kind as a power of width."""

    def spoil(data):
        for row in data["rows"]:
            power = powers.get(row[key], powers.get("others", 0.0))
            tried = [(data["widths"][0] ** power, 2.0), (row["width"] ** power, 1.0)]
            row["runs"] = [{"rate": rate, "seed": 0, "last": loss, "sizes": [1.0]} for rate, loss in tried]

    return spoil


CRITICAL = (critical_share(1.0), critical_share(0.7), critical_share(0.1))
ORDER = {"hybrid": 0.9, "neural-tangent": 0.8, "standard": 0.7, "maximal-update": 0.6}
SPOILT = {
    "dslm-table20": (percent(0.01), percent(500.0, 0.2), percent(500.0)),
    "dslm-figures1-4": (predicted_by(1.01), predicted_by(1.1), predicted_by(3.0)),
    "dslm-depth-width": (off_by(0.0, 1.0), off_by(0.5, 0.05), off_by(0.5, 1.0)),
    "dslm-figure5": (correlations(-0.05, 0.05), correlations(-0.05, -0.01), correlations(0.02, 0.05)),
    "dslm-figure6": (ending_at(0.88, 0.2), ending_at(0.7, 0.2), ending_at(0.99, 0.2)),
    "dslm-table24": (counted(0.0), counted(8.0), counted(100.0)),
    "dslm-query-key": (grown(4.0), grown(2.0), grown(0.0)),
    "dslm-table4": (
        shapes((2.0, 2.5, 4.0), (2.1, 1.9, 1.8)),
        shapes((1.0, 1.5, 3.0), (2.1, 1.9, 1.8)),
        shapes((1.0, 1.0, 1.0), (2.1, 1.9, 1.8)),
    ),
    "dslm-table5": (
        shapes((2.0, 2.0, 2.0), (1.9, 1.9, 1.9)),
        shapes((2.0, 2.0, 2.0), (2.1, 1.9, 2.1)),
        shapes((2.0, 2.0, 2.0), (1.9, 2.1, 2.1)),
    ),
    "dslm-table7": (
        pairs(pre=(2, 1.5), post=(2, 1.5)), pairs(pre=(2, 1.5), post=(2, 2.1)), pairs(pre=(2, 3), post=(2, 3)),
    ),
    "dslm-masked-pieces": (
        pairs(pre=(2, 1.5), post=(2, 1.5)), pairs(pre=(2, 2.1), post=(2, 1.5)), pairs(pre=(2, 3), post=(2, 3)),
    ),
    "dslm-table8": (
        losses(2.0, 1.9, 2.0, 1.9, key="models"),
        losses(2.0, 1.9, 2.0, 2.1, key="models"),
        losses(2.0, 2.1, 2.0, 2.1, key="models"),
    ),
    "dslm-table9": (accurate(0.7, 0.71), accurate(0.7, 0.701), accurate(0.7, 0.69)),
    "dslm-table10": (by_method(1.5, 2.0), by_method(1.99, 2.0), by_method(2.5, 2.0)),
    "dslm-table11": (cast(1.0, 0.5), cast(1.0, 0.9), cast(1.0, 2.0)),
    "dslm-table12": (parts(4.0, 2.0), parts(2.5, 2.0), parts(1.5, 2.0)),
    "dslm-table13": (losses(2.5, 2.2, 2.1, 2.0), losses(2.1, 2.1, 2.05, 2.0), losses(1.5, 2.2, 2.1, 2.0)),
    "dslm-figures7-10": (profiles(-1.0, 0.1, 1.0), profiles(-1.0, 0.1, 5.0), profiles(-0.1, 1.0, 9.0)),
    "apjn-figure1": (steeper(0.0), steeper(0.2), steeper(1.0)),
    "apjn-figure2": CRITICAL,
    "apjn-figure3": (partly(1.0), partly(0.7), partly(0.2)),
    "apjn-figure4": CRITICAL,
    "apjn-figure5": CRITICAL,
    "apjn-figure6": CRITICAL,
    "apjn-figure7": (critical_share(1.0, 0.5), critical_share(0.7, 0.5), critical_share(1.0, 1.5)),
    "apjn-figure8": (spanning(40), spanning(20), spanning(2)),
    "apjn-figure9": (faster(1.0), faster(1.3), faster(4.0)),
    "apjn-figure10": (scaled_end(0.95), scaled_end(0.6), scaled_end(1e6)),
    "apjn-figure11": (reaching(28.0), reaching(15.0), reaching(10.0, 40.0)),
    "apjn-figure12": (trained_powers((-3, -2, -1, 0, 1)), trained_powers((0, 1)), trained_powers(())),
    "apjn-figure4-trained": (
        accuracies((0.2, 0.3, 0.3, 0.3), 0.4, 0.5, 0.6),
        accuracies(0.4, 0.5, 0.3, 0.6),
        accuracies(0.6, 0.5, 0.4, 0.3),
    ),
    "apjn-figure5-trained": (
        accuracies((0.1, 0.2, 0.3, 0.4, 0.5, 0.6), 0.9),
        accuracies((0.1, 0.2, 0.3, 0.4, 0.5, 0.6), 0.55),
        accuracies(0.5, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)),
    ),
    "preln-gradients": (norms(-0.5, 2.0), norms(-0.5, 0.5), norms(0.0, 0.5)),
    "preln-warmup": (warmed(3.0, 2.0), warmed(3.0, 2.0), warmed(2.0, 2.0)),
    "effective-slopes": (groups(0.0, 0.0), groups(0.5, 0.0), groups(0.5, 0.5)),
    "effective-vit": (
        strategies(ORDER, {"standard": 3}),
        strategies(ORDER | {"hybrid": 0.5}, {"standard": 3}),
        strategies(ORDER, {"neural-tangent": 3}),
    ),
    "effective-spans": (ways(2.5, 2.0), ways(2.5, 2.0), ways(2.0, 2.5)),
    "abc-table3": (sloped(0.0), sloped(0.1), sloped(0.5)),
    "abc-alignment": (aligned(1), aligned("17/20"), aligned("1/2")),
    "abc-transfer": (
        rates_over_widths("name", plain=-1.0),
        rates_over_widths("name", plain=-1.0, others=-0.5),
        rates_over_widths("name", plain=-0.1, others=-0.5),
    ),
    "others-mup-rates": (
        rates_over_widths("rule", sp=-1.0, mup=0.0),
        rates_over_widths("rule", sp=-0.5, mup=0.0),
        rates_over_widths("rule", sp=0.0, mup=0.0),
    ),
    "others-completep-depth": (
        powers_of_depth(none=0.7, sqrt=0.0, linear=0.0),
        powers_of_depth(none=0.7, sqrt=0.0, linear=0.3),
        powers_of_depth(none=0.1, sqrt=0.0, linear=0.7),
    ),
    "others-entropy-collapse": (flat_entropy(0.0), flat_entropy(0.08), flat_entropy(0.6)),
}  # fmt: skip


def in_order_alone(name, data):
    """What the second spoiling cannot do by one number for all."""
    if name == "preln-warmup":  # one of two rates is left to Post-LN
        data["rates"] = [0.1, 0.2]
        for item in data["methods"]:
            bad = item["placement"] == "post" and not item["warmup"]
            item["runs"] = [
                {"rate": rate, "seed": 0, "last": 3.0 if bad and rate > 0.1 else 2.0} for rate in (0.1, 0.2)
            ]
    if name == "effective-spans":  # the best rates lie four octaves apart
        for run in data["strategies"][1]["runs"]:
            run["rate"] *= 16.0


@pytest.mark.parametrize("name", ITEMS)
def test_the_rule_can_say_each_verdict(name):
    found = []
    for wanted, spoil in zip(VERDICTS, SPOILT[name], strict=False):
        data = stored(name)
        spoil(data)
        if wanted == VERDICTS[1]:
            in_order_alone(name, data)
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
