"""dslm at initialization: section 3.4, Figs. 5 and 6, Table 24, and enlarged queries and keys (section 4.2)."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from sigprop.blueprints import predict as predict_blueprint
from sigprop.measurement import measure
from sigprop.models import build
from sigprop.models.transformer import Attention, FeedForward, TransformerConfig
from sigprop.plans.scaling import plan as prescribe
from sigprop.prediction import predict
from sigprop.research.stack_laws import block_rows, scaled_transformer
from sigprop.results.profile import streams
from studies.reproduction import UNSEEN, Found, Reproduction, Row, Setting, rounded
from studies.stack_accuracy import TOKENS, VOCABULARY, measured_stacks, network, token_ids

# -- section 3.4: predictions over depths and widths

CASES = (("pre", "vanilla"), ("post", "deepscale"), ("pre", "deepscale"))
"""DeepScale's beta^2 = 2/N needs more than two layers."""


def over_sizes(
    setting: Setting, depths: Sequence[int], widths: Sequence[int], seeds: int, first: int
) -> dict[str, Any]:
    """Encoders over depth at width 128, and shallow ones over width: prediction, measurement and its error."""
    found = []
    for placement, scaling in CASES:
        least, few = (1, 2) if scaling == "vanilla" else (4, 4)
        for depth, width in [(depth, 128) for depth in (least, *depths)] + [(few, width) for width in widths]:
            given = (placement, scaling, depth, width, range(first, first + seeds), setting.device)
            found.append(setting.part(f"{placement} {scaling} {depth} {width}", compared, *given))
    return {"tokens": 32, "seeds": list(range(first, first + seeds)), "rows": found}


def compared(placement: str, scaling: str, depth: int, width: int, seeds: range, device: str) -> dict[str, Any]:
    ids = token_ids(5, 32, 256)
    targets = ids.roll(-1).to(device)
    blueprint = scaled_transformer(
        scaling, depth, kind="encoder", norm_placement=placement, width=width,
        heads=width // (127 if width % 64 else 64), tokens=32, vocabulary=256, dropout=0.1, ids=ids, state="dense",
    )  # fmt: skip
    profile = predict_blueprint(blueprint)

    def made() -> nn.Module:
        with torch.device(device):
            return network(blueprint, profile, device)

    first, *_, last = [row.name for row in block_rows(profile.sites)] * 2
    real = measure(
        None, ids[None].to(device), lambda logits: nn.functional.cross_entropy(logits[0], targets),
        sites=sorted({first, last}), build=made, seeds=seeds,
    )  # fmt: skip
    predicted, measured = ({row.name: row for row in found.sites} for found in (profile, real))
    found: dict[str, Any] = {"placement": placement, "scaling": scaling, "depth": depth, "width": width}
    for column, site in {"variance": last, "grad_variance": first}.items():
        values = (getattr(predicted[site], column), getattr(measured[site], column), measured[site].errors[column])
        found[column] = rounded(values)
    return found


def depth_width(data: dict[str, Any]) -> Found:
    rows, errors, beyond = [], [], []
    for item in data["rows"]:
        where = f"{item['placement']}-LN, {item['scaling']}, {item['depth']} x {item['width']}"
        told = []
        for column, label in (("variance", "variance"), ("grad_variance", "gradient")):
            predicted, measured, error = item[column]
            off, noise = predicted / measured - 1.0, error / measured
            errors.append(abs(off))
            beyond += [where] if not abs(off) <= 0.1 + 2 * noise else []
            told.append(f"{label} {off:+.1%} ± {noise:.1%}")
        rows.append(Row(f"{where}: error of the prediction", "within 10 %", ", ".join(told)))
    deepest = max(item["depth"] for item in data["rows"])
    ends = [item for item in data["rows"] if item["depth"] == deepest and item["scaling"] == "deepscale"]
    largest = max(item["variance"][1] for item in ends)
    rows.append(Row(f"DeepScale, {deepest} layers: variance at the end", "at most 30", f"{largest:.3g}"))
    why = (
        f"Median error {statistics.median(errors):.1%}, worst {max(errors):.1%}, {len(data['seeds'])} initializations."
    )
    why += f" Beyond 10 % and two standard errors: {', '.join(dict.fromkeys(beyond))}." if beyond else ""
    return Found(why, rows, {"beyond": len(beyond), "share_beyond": len(beyond) / len(errors), "largest": largest})


# -- Fig. 5: what an mlp and an attention block do to the correlation of tokens

GIVEN = (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)


def correlated(correlation: float, count: int, width: int) -> Tensor:
    """One sequence of unit variance whose tokens share a part of every channel."""
    generator = torch.Generator().manual_seed(11)
    shared, own = (torch.randn(1, rows, width, generator=generator) for rows in (1, count))
    return correlation**0.5 * shared + (1.0 - correlation) ** 0.5 * own


def block(name: str, width: int) -> nn.Module:
    config = TransformerConfig(width=width, heads=width // 64, bias=False, dropout=0.1, activation="relu")
    made: nn.Module = FeedForward(config) if name == "mlp" else Attention(config, causal=False)
    for parameter in made.parameters():
        nn.init.xavier_normal_(parameter)
    return made.train()


def through_blocks(setting: Setting, width: int, tokens: int, seeds: int, first: int) -> dict[str, Any]:
    chosen, rows = range(first, first + seeds), []
    for name, given in itertools.product(("mlp", "attention"), GIVEN):
        x = correlated(given, tokens, width).to(setting.device)
        real = measure(None, x, build=lambda name=name: block(name, width).to(setting.device), seeds=chosen)
        expected = predict(lambda name=name: block(name, width), x.cpu(), verify=0).sites[-1].token_correlation
        found = real.sites[-1]
        row = {"block": name, "given": given, "predicted": round(expected, 4)}
        row |= {"measured": round(found.token_correlation, 4), "error": round(found.errors["token_correlation"], 5)}
        rows.append(row)
    return {"width": width, "tokens": tokens, "seeds": list(chosen), "rows": rows}


def figure5(data: dict[str, Any]) -> Found:
    rows = [
        Row(
            f"{item['block']}: correlation {item['given']} becomes",
            "below it" if item["block"] == "mlp" and item["given"] > 0.65 else "below 1",
            f"{item['measured']:.3f} ± {item['error']:.3f}, predicted {item['predicted']:.3f}",
        )
        for item in data["rows"]
    ]
    mlp = [(item["given"], item["measured"] - item["given"]) for item in data["rows"] if item["block"] == "mlp"]
    bounded = max(item["measured"] for item in data["rows"] if item["block"] == "attention")
    errors = [abs(item["predicted"] - item["measured"]) for item in data["rows"]]
    crossing = math.nan
    for (left, before), (right, after) in itertools.pairwise(mlp):
        if before > 0 >= after:
            crossing = left + (right - left) * before / (before - after)
    why = (
        f"The mlp lowers correlations above {crossing:.2f} (the paper: 0.65) and raises those below; attention ends at "
    )
    why += f"{bounded:.3f} at most. Predictions are within {max(errors):.3f} of {len(data['seeds'])} initializations "
    why += f"(median {statistics.median(errors):.4f})."
    numbers = {"change_above": max(change for given, change in mlp if given > 0.65)}
    numbers |= {"change_below": min(change for given, change in mlp if given < 0.65), "attention_at_most": bounded}
    return Found(why, rows, numbers)


# -- Fig. 6: token correlation over depth

PLATEAU = 0.88
"""Where dslm, appendix F, puts the correlation of Xavier stacks."""


def figure6(data: dict[str, Any]) -> Found:
    curves = {record["case"]: record["measured"]["token_correlation"] for record in data.values()}
    errors = {record["case"]: record["measured"]["token_correlation_error"][-1] for record in data.values()}
    rows = [
        Row(
            f"{case}: token correlation after 12 and after all {len(curve)} layers",
            f"at most {PLATEAU}" if "vanilla" in case else "grows slower",
            f"{curve[11]:.3f}, {curve[-1]:.3f} ± {errors[case]:.3f}",
        )
        for case, curve in curves.items()
    ]
    last = curves["encoder-post-vanilla"][-1]
    slower = min(curves[f"encoder-{p}-vanilla"][11] - curves[f"encoder-{p}-deepscale"][11] for p in ("pre", "post"))
    why = f"Xavier ends at {last:.3f}, not at 1; after 12 layers the correlation is at least {slower:.3f} lower with "
    why += "DeepScale."
    numbers = {"last": last, "slower_by": slower, "layers": min(map(len, curves.values()))}
    return Found(why, rows, numbers)


# -- Table 24: compute of shapes with constant N d^2

SHAPES = {(12, 1024): 0.0, (48, 512): -2.5, (192, 256): 6.3, (784, 128): 30.6, (24, 1024): 0.0, (96, 512): 2.3}
"""Layers and width: the paper's percent of extra compute over the first shape of as many parameters."""
FIRST = {(48, 512): (12, 1024), (192, 256): (12, 1024), (784, 128): (12, 1024), (96, 512): (24, 1024)}


def count_shapes(setting: Setting, tokens: int, vocabulary: int) -> dict[str, Any]:
    """Operation by operation on the meta device, forward and backward, with an untied readout at every token."""
    found = []
    for layers, width in SHAPES:
        with torch.device("meta"):
            model = build(
                "transformer", kind="encoder", norm_placement="post", depth=layers, width=width, heads=width // 64,
                context=tokens, vocabulary=vocabulary,
            )  # fmt: skip
            ids = torch.zeros(1, tokens, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            model(ids).sum().backward()
        parameters = sum(parameter.numel() for parameter in model.parameters())
        found.append({"layers": layers, "width": width, "flops": counter.get_total_flops(), "parameters": parameters})
    return {"shapes": found, "tokens": tokens, "vocabulary": vocabulary, "seeds": []}


def table24(data: dict[str, Any]) -> Found:
    flops = {(item["layers"], item["width"]): item["flops"] for item in data["shapes"]}
    rows, apart = [], []
    for shape, first in FIRST.items():
        extra = 100 * (flops[shape] / flops[first] - 1)
        told = f"{shape[0]} x {shape[1]} against {first[0]} x {first[1]}: extra compute"
        rows.append(Row(told, f"{SHAPES[shape]:+.1f} %", f"{extra:+.1f} %"))
        apart.append(abs(extra - SHAPES[shape]))
    why = f"The count is within {max(apart):.1f} percentage points of the paper's."
    return Found(why, rows, {"points_apart": max(apart)})


# -- section 4.2: queries and keys of twice Xavier's standard deviation

STACKS = tuple(itertools.product(("encoder", "decoder"), ("pre", "post")))


def enlarge(setting: Setting, layers: int, width: int, seeds: int, first: int) -> dict[str, Any]:
    """Growth of the mean square gradient from the last block to the first, as prescribed and doubled."""
    found = [
        setting.part(f"{kind} {placement} {factor:g}", _grown, kind, placement, layers, width, factor,
                     range(first, first + seeds), setting.device)
        for (kind, placement), factor in itertools.product(STACKS, (1.0, 2.0))
    ]  # fmt: skip
    shape = {"layers": layers, "width": width, "xavier": "per head"}
    return {**shape, "seeds": list(range(first, first + seeds)), "rows": found}


def _grown(
    kind: str, placement: str, layers: int, width: int, factor: float, seeds: range, device: str
) -> dict[str, Any]:
    ids = token_ids()[None]
    targets = ids[0].roll(-1).to(device)

    def made() -> nn.Module:
        return build(
            "transformer", kind=kind, norm_placement=placement, depth=layers, width=width, heads=max(width // 64, 1),
            context=TOKENS, vocabulary=VOCABULARY, activation="relu",
        )  # fmt: skip

    plan = prescribe(made(), "xavier", batch=ids, per="head", embedding=1.0)

    def enlarged(seed: int) -> nn.Module:
        model = plan.apply_(made(), torch.Generator().manual_seed(seed))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(("query.weight", "key.weight")):
                    parameter.mul_(factor)
        return model.to(device)

    def loss(logits: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits[0], targets)

    growths = []
    for seed in seeds:
        rows = next(iter(streams(measure(enlarged(seed), ids.to(device), loss).sites).values()))
        growths.append(rows[0].grad_variance / rows[-1].grad_variance)
    return {"kind": kind, "placement": placement, "factor": factor, "growth": rounded(growths, 4)}


def query_key(data: dict[str, Any]) -> Found:
    medians = {
        (row["kind"], row["placement"], row["factor"]): sorted(row["growth"])[len(row["growth"]) // 2]
        for row in data["rows"]
    }
    rows, ratios, orders = [], [], {}
    for kind, placement in STACKS:
        plain, doubled = medians[kind, placement, 1.0], medians[kind, placement, 2.0]
        ratios.append(doubled / plain)
        orders[f"orders_{kind}_{placement}"] = math.log10(ratios[-1])
        told = f"{plain:.3g} to {doubled:.3g}: {doubled / plain:.3g} times"
        rows.append(Row(f"{kind}, {placement}-LN: gradient growth, Xavier to doubled", "10,000 times", told))
    why = (
        f"{data['layers']} layers of width {data['width']}, medians over {len(data['seeds'])} initializations, Xavier "
    )
    why += (
        f"{data.get('xavier', 'per matrix')}: doubled queries and keys change the growth of the mean square gradient "
    )
    why += f"by {min(ratios):.2g} to {max(ratios):.2g} times."
    return Found(why, rows, orders)


ITEMS = (
    Reproduction(
        id="dslm-depth-width",
        place="section 3.4, depths 1 to 768 and widths 128 to 6096",
        claim="The formulas are within 10 % for 1 to 768 layers and widths 128 to 6096; with beta^2 = 2/N the output's "
        "variance does not exceed 30 after 768 layers.",
        run=over_sizes,
        figures=depth_width,
        reproduced="beyond == 0 and largest <= 30",
        in_order="share_beyond <= 0.1 and largest <= 30",
        deviation="Vanilla stacks have Xavier per matrix (2/(d + d); the paper's is 2/(d + d_head) for queries, keys "
        "and values).",
        small={"depths": (12, 96), "widths": (256, 512), "seeds": 8, "first": UNSEEN},
        full={"depths": (12, 96, 768), "widths": (512, 2048, 6096), "seeds": 16, "first": UNSEEN},
        minutes=(2, 3),
        budget={"seeds": 8.0},
    ),
    Reproduction(
        id="dslm-figure5",
        place="Fig. 5",
        claim="With dropout 0.1 an mlp lowers the correlation of tokens above 0.65, and attention never lets it reach "
        "1.",
        run=through_blocks,
        figures=figure5,
        reproduced="change_above < 0 and change_below > 0 and attention_at_most < 1",
        in_order="change_above < 0 and attention_at_most < 1",
        small={"width": 256, "tokens": 128, "seeds": 16, "first": UNSEEN},
        full={"width": 512, "tokens": 256, "seeds": 32, "first": UNSEEN},
        deviation="Xavier per matrix (2/(d + d); the paper's is 2/(d + d_head) for queries, keys and values).",
        budget={"seeds": 16.0},
    ),
    Reproduction(
        id="dslm-figure6",
        place="Fig. 6 and appendix F",
        claim="With Xavier and dropout tokens do not collapse onto each other: their correlation settles near 0.88, "
        "and "
        "grows more slowly with DeepScale.",
        run=measured_stacks,
        figures=figure6,
        reproduced=f"slower_by > 0 and abs(last - {PLATEAU}) < 0.05",
        in_order="slower_by > 0 and last < 0.95",
        decided="layers >= 96",
        small={"kinds": ("encoder",), "depth": 96, "seeds": 8, "first": UNSEEN},
        full={"kinds": ("encoder",), "depth": 192, "seeds": 40, "first": UNSEEN},
        minutes=(1, 8),
        deviation="Xavier per matrix (2/(d + d); the paper's is 2/(d + d_head) for queries, keys and values).",
    ),
    Reproduction(
        id="dslm-table24",
        place="Table 24",
        claim="At constant N d^2, 192 layers of width 256 cost 6 % more compute than 12 of 1024, and 784 of 128 31 % "
        "more.",
        run=count_shapes,
        figures=table24,
        reproduced="points_apart < 5",
        in_order="points_apart < 15",
        small={"tokens": 256, "vocabulary": 30_522},
        full={"tokens": 256, "vocabulary": 30_522},
        deviation="Counted by torch at the 256 tokens of Table 25; the paper counts with Electra's script.",
        budget={"tokens": 256.0},
    ),
    Reproduction(
        id="dslm-query-key",
        place="section 4.2",
        claim="Queries and keys initialized with twice Xavier's standard deviation make gradients explode 10,000 times "
        "over 192 layers.",
        run=enlarge,
        figures=query_key,
        reproduced="min(abs(orders_encoder_pre - 4), abs(orders_encoder_post - 4)) <= 0.5",
        in_order="max(orders_encoder_pre, orders_encoder_post) >= 1",
        small={"layers": 192, "width": 256, "seeds": 3, "first": UNSEEN},
        full={"layers": 192, "width": 256, "seeds": 16, "first": UNSEEN},
        minutes=(4, 3),
        deviation="The paper does not say where its norms stand. When the rule was written, an audit had measured 1.6 "
        "million (Pre-LN) and 4,500 (Post-LN) on other seeds. With Xavier per matrix, that of an earlier record "
        "(commit 4db0e4d), it is 278 and 169.",
        budget={"layers": 192.0, "seeds": 3.0},
    ),
)  # fmt: skip
