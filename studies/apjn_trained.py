"""apjn in training: where deep MLPs train (Figs. 3 and 12), ResNets (Fig. 4) and Mixers (Fig. 5), on Fashion-MNIST.

Every learning rate is tried for a few steps at every point, all as one batched program; the best one of each point is
then trained anew in full. Of Fig. 3 the text names erf; the second activation is taken to be ReLU.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from sigprop.models import build, mlp
from sigprop.research.criticality import architecture, factor_at_depth
from sigprop.research.lab import Settings
from studies.apjn_start import axis
from studies.reproduction import SEEDS, Found, Reproduction, Row, Setting
from studies.trainings import TRAINED, best_trained, images_of

Point = tuple[float, ...]
PANELS = tuple(itertools.product(("erf", "relu"), ("none", "preactivation"), (0.0, 1.0)))
CLOSE = 0.1
"""Points with |log chi_J| below this are close to criticality: over 50 layers gradients change by less than e^2.5."""
CLOTHES = "Small images of clothes in place of CIFAR-10."


def settings(setting: Setting, steps: int, optimizer: str = "sgd") -> Settings:
    mode = "graph" if setting.device == "cuda" else "eager"
    plain = {"weight_decay": 0.0, "warmup": 0.0, "decay": "constant", "clip": 0.0}
    return Settings(steps=steps, optimizer=optimizer, mode=mode, device=setting.device, **plain)


def panel_of(
    setting: Setting, network: Callable[[Point], nn.Module], points: Sequence[Point], rates: Sequence[float],
    images: int, batch: int, probe: int, steps: int, together: int, seeds: Sequence[int], optimizer: str = "sgd",
) -> dict[str, Any]:  # fmt: skip
    batches, _ = images_of(setting, batch, images)
    return best_trained(network, points, rates, batches, settings(setting, steps, optimizer), probe, together, seeds)


def mlp_panel(
    setting: Setting, activation: str, norm: str, mu: float, points: Sequence[Point], rates: Sequence[float],
    depth: int, width: int, **run: Any,
) -> dict[str, Any]:  # fmt: skip
    """Rates, accuracies and losses of all points of one architecture, beside chi_J of theory at the last layer."""

    def network(point: Point) -> nn.Module:
        shape = {"activation": activation, "norm_placement": norm, "mu": mu}
        return mlp(depth=depth, width=width, sigma_w=point[0], sigma_b=point[1], **shape)

    found = panel_of(setting, network, points, rates, **run)
    weights, biases = torch.tensor(points, dtype=torch.float64).T
    chi = factor_at_depth(architecture(activation, norm, mu), weights, biases, depth).tolist()
    shape = {"activation": activation, "norm": norm, "mu": mu}
    return {**shape, **found, "chi": [float(f"{value:.4g}") for value in chi]}


def epochs(steps: int, batch: int, images: int) -> float:
    return round(steps * batch / images, 1)


def train_planes(setting: Setting, points: int, rates: Sequence[float], **run: Any) -> dict[str, Any]:
    plane = list(itertools.product(axis(0.25, 3.0, points), axis(0.0, 1.5, points)))

    def work(activation: str, norm: str, mu: float) -> dict[str, Any]:
        return mlp_panel(setting, activation, norm, mu, plane, rates, **run)

    panels = [setting.part(f"{one} {norm} {mu:g}", work, one, norm, mu) for one, norm, mu in PANELS]
    sizes = {"depth": run["depth"], "width": run["width"], "probe_steps": run["probe"], "batch": run["batch"]}
    sizes["epochs"] = epochs(run["steps"], run["batch"], run["images"])
    return {**sizes, "rates": rates, "points": plane, "seeds": run["seeds"], "panels": panels}


def figure3(data: dict[str, Any]) -> Found:
    shares = {
        (p["activation"], p["norm"], p["mu"]): sum(value >= TRAINED for value in p["accuracy"]) / len(p["accuracy"])
        for p in data["panels"]
    }
    rows = [
        Row(
            f"{activation}, {'LayerNorm' if norm != 'none' else 'no norm'}, mu = {mu:g}: points trained",
            "everywhere" if norm != "none" and mu == 1 else "",
            f"{shares[activation, norm, mu]:.0%}",
        )
        for activation, norm, mu in PANELS
    ]
    known = [
        (abs(torch.tensor(chi).log().item()) < CLOSE, accuracy >= TRAINED)
        for panel in data["panels"]
        if panel["mu"] == 0
        for chi, accuracy in zip(panel["chi"], panel["accuracy"], strict=True)
    ]
    close, far = ([trained for near, trained in known if near is side] for side in (True, False))
    near, away = (sum(found) / max(len(found), 1) for found in (close, far))
    told = "mu = 0: trained of points close to the critical line, of the others"
    rows.append(Row(told, "close", f"{near:.0%}, {away:.0%}"))
    everywhere = min(shares[one, "preactivation", 1.0] for one in ("erf", "relu"))
    most = min(shares[key[0], "preactivation", 1.0] - share for key, share in shares.items())
    minutes = sum(panel.get("seconds", 0.0) for panel in data["panels"]) / 60
    why = f"LayerNorm with mu = 1 trains at least {everywhere:.0%} of the points. "
    why += (
        f"{data['depth']} layers of width {data['width']}, {data['epochs']:g} epochs, {len(data['points'])} points a "
    )
    why += f"panel, {minutes:.0f} minutes in all; a point counts as trained from {TRAINED:.0%} training accuracy."
    skip = shares["erf", "none", 1.0] - shares["erf", "none", 0.0]
    numbers = {"everywhere": everywhere, "ahead_of_others": most, "gain_of_skip": skip, "gain_of_close": near - away}
    return Found(why, rows, numbers)


POWERS = tuple(range(-3, 6))
"""sigma_w^2 = 10^power; sigma_b = 0."""


def train_line(setting: Setting, rates: Sequence[float], **run: Any) -> dict[str, Any]:
    """Gradients of normalized layers fall like 1 / sigma_w: large weights want large rates."""
    points = [(10.0 ** (power / 2), 0.0) for power in POWERS]
    found = setting.part("erf", lambda: mlp_panel(setting, "erf", "preactivation", 0.0, points, rates, **run))
    sizes = {"depth": run["depth"], "width": run["width"]}
    sizes["epochs"] = epochs(run["steps"], run["batch"], run["images"])
    return {**sizes, "seeds": run["seeds"], "powers": POWERS, "panel": found}


def figure12(data: dict[str, Any]) -> Found:
    accuracies = dict(zip(data["powers"], data["panel"]["accuracy"], strict=True))
    rows = [
        Row(f"sigma_w^2 = 10^{power}: training accuracy", "trains", f"{accuracy:.0%}, rate {rate:g}")
        for (power, accuracy), rate in zip(accuracies.items(), data["panel"]["rate"], strict=True)
    ]
    trained = [power for power, accuracy in accuracies.items() if accuracy >= TRAINED]
    orders = max(trained) - min(trained) if trained else 0
    gaps = orders + 1 - len(trained) if trained else 0
    why = (
        f"{len(trained)} of {len(accuracies)} points train (from {TRAINED:.0%} accuracy), over {orders} orders of "
        f"magnitude{', with gaps' if gaps else ''}; {data['depth']} layers of width {data['width']}, "
        f"{data['epochs']:g} epochs."
    )
    return Found(why, rows, {"orders": orders, "gaps": gaps})


def initialized_(model: nn.Module, sigma_w: float, sigma_b: float) -> nn.Module:
    """Every matrix and kernel with variance sigma_w^2 / fan_in, every bias of a linear map with sigma_b^2."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.normal_(module.weight, 0.0, sigma_w / module.weight[0].numel() ** 0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, 0.0, sigma_b)
    return model


SQUARES, STRENGTHS = (0.1, 0.5, 2.0, 4.0), (0.0, 0.5, 0.9, 1.0)
MIXED: tuple[Point, ...] = ((0.5, 0.0), (0.5, 1.0), (1.4, 0.0), (1.4, 1.0), (2.5, 0.0), (2.5, 1.0))
"""(sigma_w, sigma_b): both sides of the line of mu = 0.5."""


def train_resnets(setting: Setting, depth: int, width: int, rates: Sequence[float], **run: Any) -> dict[str, Any]:
    def work(mu: float) -> dict[str, Any]:
        def network(point: Point) -> nn.Module:
            model = build("resnet", channels=1, width=width, depth=depth, norm="layer_norm", mu=mu)
            return initialized_(model, point[0] ** 0.5, 0.0)

        return panel_of(setting, network, [(s,) for s in SQUARES], rates, optimizer="momentum", **run) | {"mu": mu}

    panels = [setting.part(f"mu {mu:g}", work, mu) for mu in STRENGTHS]
    sizes = {"layers": 6 * depth + 2, "width": width, "epochs": epochs(run["steps"], run["batch"], run["images"])}
    return {**sizes, "seeds": run["seeds"], "squares": SQUARES, "panels": panels}


def figure4(data: dict[str, Any]) -> Found:
    rows = [
        Row(
            f"mu = {panel['mu']:g}: training accuracy at sigma_w^2 = {', '.join(f'{s:g}' for s in data['squares'])}",
            "poor at small sigma_w^2" if panel["mu"] == 0 else "better with mu",
            ", ".join(f"{value:.0%}" for value in panel["accuracy"]),
        )
        for panel in data["panels"]
    ]
    means = [statistics.mean(panel["accuracy"]) for panel in data["panels"]]
    critical = [panel["accuracy"][data["squares"].index(2.0)] for panel in data["panels"]]
    why = f"ResNet-{data['layers']} of width {data['width']}, {data['epochs']:g} epochs. Mean accuracy over "
    why += f"sigma_w^2: {', '.join(f'{value:.0%}' for value in means)} for mu = 0, 0.5, 0.9, 1; at sigma_w^2 = 2 "
    why += f"{', '.join(f'{value:.0%}' for value in critical)}."
    numbers = {"least_rise": min(after - before for before, after in itertools.pairwise(means))}
    numbers |= {"gain": means[-1] - means[0], "at_small_weights": data["panels"][0]["accuracy"][0]}
    return Found(why, rows, numbers)


def train_mixers(setting: Setting, depth: int, width: int, rates: Sequence[float], **run: Any) -> dict[str, Any]:
    def work(mu: float) -> dict[str, Any]:
        def network(point: Point) -> nn.Module:
            shape = {"width": width, "token_hidden": 2 * width, "channel_hidden": 2 * width}
            model = build("mixer", image=28, channels=1, patch=4, depth=depth, mu=mu, **shape)
            return initialized_(model, *point)

        return panel_of(setting, network, MIXED, rates, **run) | {"mu": mu}

    panels = [setting.part(f"mu {mu:g}", work, mu) for mu in (0.5, 1.0)]
    sizes = {"depth": depth, "width": width, "epochs": epochs(run["steps"], run["batch"], run["images"])}
    return {**sizes, "seeds": run["seeds"], "points": MIXED, "panels": panels}


def figure5(data: dict[str, Any]) -> Found:
    half, whole = (panel["accuracy"] for panel in data["panels"])
    rows = [
        Row(f"sigma_w = {w:g}, sigma_b = {b:g}: accuracy at mu = 0.5, at mu = 1", "higher at 1", f"{x:.0%}, {y:.0%}")
        for (w, b), x, y in zip(data["points"], half, whole, strict=True)
    ]
    higher = sum(y > x for x, y in zip(half, whole, strict=True))
    wide, narrow = (max(values) - min(values) for values in (half, whole))
    trained = sum(value >= TRAINED for value in whole)
    why = f"{data['depth']} blocks of width {data['width']}, {data['epochs']:g} epochs. At mu = 1 {higher} of "
    why += f"{len(half)} initializations train better and {trained} reach {TRAINED:.0%}; accuracies spread over "
    why += f"{narrow:.0%}, at mu = 0.5 over {wide:.0%}."
    numbers = {"share_better": higher / len(half), "share_trained": trained / len(half), "narrower_by": wide - narrow}
    return Found(why, rows, numbers)


RUN3 = {
    "small": {
        "depth": 30,
        "width": 100,
        "images": 6_000,
        "batch": 64,
        "probe": 20,
        "steps": 250,
        "together": 80,
        "seeds": SEEDS[:1],
    },
    "full": {
        "depth": 50,
        "width": 500,
        "images": 60_000,
        "batch": 256,
        "probe": 58,
        "steps": 2340,
        "together": 160,
        "seeds": SEEDS,
    },
}
RATES3, RATES12 = tuple(10.0**-power for power in range(5)), tuple(10.0**power for power in range(-5, 4))

ITEMS = (
    Reproduction(
        id="apjn-figure3",
        place="Fig. 3",
        claim="MLPs of 50 layers train near the critical line; with LayerNorm and mu = 1 they train everywhere, and "
        "erf "
        "with mu = 1 trains more often than without a skip.",
        run=train_planes,
        figures=figure3,
        reproduced="everywhere == 1 and ahead_of_others >= 0 and gain_of_skip > 0 and gain_of_close > 0",
        in_order="ahead_of_others >= 0 and gain_of_skip > 0 and gain_of_close > 0",
        small={"points": 4, "rates": RATES3, **RUN3["small"], "steps": 470},
        full={"points": 8, "rates": RATES3, **RUN3["full"]},
        minutes=(4, 15),
        deviation=CLOTHES,
        budget={"epochs": 5.0},
    ),
    Reproduction(
        id="apjn-figure12",
        place="Fig. 12",
        claim="Deep erf networks with LayerNorm on pre-activations train over several orders of magnitude of "
        "sigma_w^2.",
        run=train_line,
        figures=figure12,
        reproduced="orders >= 3 and gaps == 0",
        in_order="orders >= 1",
        small={"rates": RATES12, **RUN3["small"]},
        full={"rates": RATES12, **RUN3["full"]},
        minutes=(7, 2),
        deviation=CLOTHES,
        budget={"epochs": 5.0, "seeds": 3.0},
    ),
    Reproduction(
        id="apjn-figure4-trained",
        place="Fig. 4 (3) and (4), in reduced size",
        claim="ResNets with LayerNorm train better the closer mu is to 1; at mu = 0 and small sigma_w^2 they hardly "
        "train.",
        run=train_resnets,
        figures=figure4,
        reproduced="least_rise >= -0.02 and at_small_weights < 0.3 and gain > 0.1",
        in_order="gain > 0",
        small={
            "depth": 3, "width": 4, "rates": (0.001, 0.01, 0.05), "images": 2_000, "batch": 32, "probe": 15, "steps":
            100, "together": 12, "seeds": SEEDS[:1],
        },
        full={
            "depth": 9, "width": 8, "rates": (0.001, 0.01, 0.05), "images": 20_000, "batch": 64, "probe": 60, "steps":
            1600, "together": 12, "seeds": SEEDS,
        },
        minutes=(3, 4),
        deviation=CLOTHES,
        budget={"epochs": 5.0, "seeds": 3.0},
    ),
    Reproduction(
        id="apjn-figure5-trained",
        place="Fig. 5 (3) and (4), in reduced size",
        claim="From mu = 0.5 to mu = 1 every MLP-Mixer trains better, and the initialization matters less.",
        run=train_mixers,
        figures=figure5,
        reproduced="share_better == 1 and narrower_by > 0 and share_trained == 1",
        in_order="share_better > 0.5 and narrower_by > 0",
        small={
            "depth": 16, "width": 32, "rates": (0.001, 0.01, 0.05, 0.2), "images": 6_000, "batch": 32, "probe": 20,
            "steps": 150, "together": 32, "seeds": SEEDS[:1],
        },
        full={
            "depth": 40, "width": 64, "rates": (0.001, 0.01, 0.05, 0.2), "images": 60_000, "batch": 128, "probe": 50,
            "steps": 2400, "together": 32, "seeds": SEEDS,
        },
        minutes=(13, 4),
        deviation=CLOTHES,
        budget={"epochs": 5.0, "seeds": 3.0},
    ),
)  # fmt: skip
