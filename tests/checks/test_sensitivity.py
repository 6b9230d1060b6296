"""Sensitivity: what it says of the output is true, deep Post-LN has too much of it, and nothing else is accused."""

import copy
import math

import pytest
import torch

from sigprop.checks import check, checks
from sigprop.checks.branches import find_branches, sensitivity_of
from sigprop.checks.evaluation import Experiment
from sigprop.checks.gauges import sensitivity
from sigprop.checks.subject import Subject
from sigprop.inputs import made_up_batch
from tests.checks.models import BERT_BASE_STD, bert, gpt2, llama, planned, transformer

TOKENS = 32
STEP = 1e-3
NARROW = {"width": 32, "heads": 2}


def examined(model):
    subject = Subject(model, made_up_batch(model, TOKENS))
    subject.measured = Experiment(model, subject.batch).measured()
    return subject


def moved(model, ids, site, draws=12):
    """How far the output of a site moves, in variance over its own, when all matrices inside blocks are moved by
    `STEP` of their size; in units of `STEP^2`, with the standard error."""

    def output(net):
        kept = {}
        handle = net.get_submodule(site).register_forward_hook(lambda *call: kept.update(output=call[-1]))
        with torch.no_grad():
            net(ids)
        handle.remove()
        return kept["output"]

    before, found = output(model), []
    for _ in range(draws):
        twin = copy.deepcopy(model)
        for name, weight in twin.named_parameters():
            if weight.dim() > 1 and "blocks" in name:
                weight.data += STEP * weight.std() * torch.randn_like(weight)
        found.append(float((output(twin) - before).square().mean() / before.var()) / STEP**2)
    values = torch.tensor(found)
    return float(values.mean()), float(values.std()) / math.sqrt(draws)


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_the_output_moves_by_the_shares_of_the_branches(placement):
    """Each branch has two matrices in a row, and its share of a sum is `share / (1 + share)`; queries and keys are left
    out, and so is what branches do to each other's change: a tenth."""
    torch.manual_seed(0)
    model = transformer(kind="encoder", norm_placement=placement, depth=8).double()
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and "blocks" in name:
            torch.nn.init.normal_(weight, 0.0, 0.06)
    subject = examined(model)
    branches = find_branches(subject.structure, subject.streams, subject.measured)
    expected = 2.0 * sum(branch.share / (1.0 + branch.share) for branch in branches)
    change, error = moved(model, subject.batch, subject.streams[0].names[-1])
    assert change == pytest.approx(expected, rel=0.15, abs=4 * error)
    assert abs(change - sensitivity_of(branches)) > 10 * error  # one matrix in a row, or three, would be told apart


HEALTHY = {
    "BERT with 12 layers": lambda: bert(12, initializer_range=BERT_BASE_STD),
    "GPT-2 with 48 layers": lambda: gpt2(48, 32),
    "Llama with 48 layers": lambda: llama(48, hidden_size=32, intermediate_size=64),
    "32 Post-LN layers under unit": planned("unit", kind="encoder", norm_placement="post", depth=32, **NARROW),
    "32 Post-LN layers under deepscale": planned(
        "deepscale", kind="encoder", norm_placement="post", depth=32, **NARROW
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_what_trains_is_not_accused(name):
    if not name.startswith("32"):
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    assert not list(checks()["sensitivity"](examined(HEALTHY[name]())))


def test_a_deep_post_ln_model_is_told_why_it_diverges_and_is_cured():
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = bert(10, initializer_range=2.0 * BERT_BASE_STD)
    report = check(model, tokens=TOKENS)
    (found,) = report["sensitivity"]
    assert found.severity == "problem"
    assert "Post-LN" in found.title
    assert found.prescription is not None
    assert found.prescription.evaluated
    assert report.plan is not None
    report.plan.apply_(model, torch.Generator().manual_seed(1))
    again = examined(model)
    assert sensitivity(again, again.measured) < 4.0
    told = [item for kind in checks().values() for item in kind(again) if item.severity != "note"]
    assert not told  # not even that the weights are no longer what the class draws: they carry a plan


def test_the_scale_of_the_skip_counts():
    """DeepNorm leaves the branches alone and multiplies the skips."""
    torch.manual_seed(0)
    model = transformer(kind="encoder", norm_placement="post", depth=4, skip_scale=2.0)
    plain = transformer(kind="encoder", norm_placement="post", depth=4)
    plain.load_state_dict(model.state_dict())
    shares = [examined(item).branches[0].share for item in (model, plain)]
    assert shares[0] == pytest.approx(shares[1] / 4.0, rel=1e-6)


class Positioned(torch.nn.Module):
    """Words of std 0.02 with positions that have no module of their own, below two Post-LN blocks, as in Marian."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(64, 32)
        torch.nn.init.normal_(self.words.weight, 0.0, 0.02)
        angles = torch.arange(TOKENS)[:, None] * 10000.0 ** (-torch.arange(16) / 16)
        self.register_buffer("places", torch.cat([angles.sin(), angles.cos()], -1))
        blocks = [torch.nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True) for _ in range(2)]
        self.blocks = torch.nn.ModuleList(blocks)

    def forward(self, ids):
        x = self.words(ids) + self.places
        for block in self.blocks:
            x = block(x)
        return x


def test_the_first_skip_is_the_sum_that_starts_the_stream():
    """Not the words alone, of which the first branch would have a hundred times the variance."""
    torch.manual_seed(0)
    model = Positioned().eval()
    subject = examined(model)
    with torch.no_grad():
        start = float((model.words(subject.batch) + model.places).var(correction=0))
    assert subject.branches[0].skip == pytest.approx(start, rel=0.02)
    assert not list(checks()["sensitivity"](subject))
