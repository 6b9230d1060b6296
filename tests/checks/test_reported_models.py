"""Models that people asked about, each wrongly judged once: what is said of them now."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sigprop as sp
from sigprop.checks.gauges import GAUGES
from sigprop.checks.tables import MARGINS
from sigprop.inputs import made_up_batch
from studies.threads.cases import Hyper
from tests.checks import planted
from tests.checks.test_answers import answered, code_of


class DetrDemo(nn.Module):
    """The demo of DETR: a small backbone, positions uniform in 0 to 1, torch's own Transformer, queries uniform too."""

    def __init__(self, width=64):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 64, 3, 2, 1), nn.ReLU())
        self.conv = nn.Conv2d(64, width, 1)
        self.transformer = nn.Transformer(width, 4, 6, 6, 4 * width, dropout=0.0)
        self.linear_class, self.linear_bbox = nn.Linear(width, 11), nn.Linear(width, 4)
        self.query_pos = nn.Parameter(torch.rand(20, width))
        self.row_embed = nn.Parameter(torch.rand(10, width // 2))
        self.col_embed = nn.Parameter(torch.rand(10, width // 2))

    def forward(self, images):
        h = self.conv(self.backbone(images))
        height, width = h.shape[-2:]
        columns = self.col_embed[:width].unsqueeze(0).repeat(height, 1, 1)
        rows = self.row_embed[:height].unsqueeze(1).repeat(1, width, 1)
        places = torch.cat([columns, rows], -1).flatten(0, 1).unsqueeze(1)
        found = self.transformer(places + 0.1 * h.flatten(2).permute(2, 0, 1), self.query_pos.unsqueeze(1))
        return self.linear_class(found.transpose(0, 1)), self.linear_bbox(found.transpose(0, 1)).sigmoid()


def test_the_demo_of_detr_has_no_problem():
    torch.manual_seed(0)
    found = answered(DetrDemo().eval(), torch.randn(1, 3, 32, 32))
    assert not [item.title for item in found.values() if item.severity == "problem"]


class UnscaledAttention(nn.Module):
    """Gemma 4's attention in small: norms of queries and keys, and scores that are multiplied by 1."""

    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.norm, self.q_norm, self.k_norm = nn.RMSNorm(width), nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x):
        h = self.norm(x)
        scores = self.q_norm(self.q(h)) @ self.k_norm(self.k(h)).transpose(1, 2)
        return self.o(scores.masked_fill(planted.upper(x.shape[1]), -torch.inf).softmax(-1) @ self.v(h))


class QueryKeyNorms(nn.Module):
    def __init__(self, depth=4, width=64):
        super().__init__()
        self.wte, self.layers = nn.Embedding(64, width), nn.ModuleList(UnscaledAttention(width) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 64, bias=False)
        for item in self.modules():
            if isinstance(item, (nn.Linear, nn.Embedding)):
                nn.init.normal_(item.weight, 0.0, 0.5 * width**-0.5)

    def forward(self, ids, targets):
        x = self.wte(ids)
        for layer in self.layers:
            x = x + layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def test_a_missing_score_scale_beside_query_key_norms_is_mended_by_their_gain():
    torch.manual_seed(0)
    model, batch = QueryKeyNorms(), (planted.ids(), planted.ids(seed=1))
    code = code_of(answered(model, batch)["attention_saturated"])
    assert "q_norm.weight" in code
    exec(code, {"model": model, "nn": nn, "range": range})
    gains = [layer.q_norm.weight for layer in model.layers]
    assert all(torch.allclose(gain, torch.full_like(gain, 64**-0.5), rtol=1e-3) for gain in gains)
    assert not answered(model, batch)


def test_mixing_logits_that_underflow_are_named():
    torch.manual_seed(0)
    found = answered(Hyper(), (torch.randint(64, (2, 16)), torch.randint(64, (2, 16))))["no_gradient"]
    text = f"{found.title} {found.cause}"
    assert "h_res_logits" in " ".join([*found.parameters, text])
    assert "`exp` in the model underflows" in text
    assert "wte" not in text
    assert "h_post" not in text


def test_fp8_and_block_formats_are_silent_on_an_ordinary_model():
    torch.manual_seed(0)
    report = sp.check(planted.GPT(), (planted.ids(), planted.ids(seed=1)), prescription=False)
    told = [item.title for item in report["precision"]]
    assert not [title for title in told if "fp8" in title or "NVFP4" in title or "MXFP8" in title]


def t5(**settings):
    transformers = pytest.importorskip("transformers")
    shape = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 256}
    config = transformers.T5Config(**shape, decoder_start_token_id=0, use_cache=False, **settings)
    torch.manual_seed(0)
    return transformers.T5ForConditionalGeneration(config).eval()


def test_labels_of_a_made_up_batch_are_not_what_the_decoder_reads():
    batch = made_up_batch(t5(), 16)
    assert (batch["labels"] != batch["decoder_input_ids"]).float().mean() > 0.5


@pytest.mark.parametrize("model", [t5, planted.tied_table_of_unit_std, planted.missing_score_scale])
def test_a_gauge_beyond_its_limit_is_never_healthy(model):
    made = model()
    report = sp.check(*(made if isinstance(made, tuple) else (made,)), tokens=16, prescription=False)
    assert not report.healthy or not [item for item in report.margins if item.beyond]


def test_every_gauge_with_a_margin_belongs_to_a_finding():
    assert set(MARGINS) <= set(GAUGES)


def test_what_was_differentiated_is_said_first():
    """nanoGPT without targets returns logits of the last position; targets are made where no batch is given."""
    torch.manual_seed(0)
    head = " ".join(str(sp.check(planted.GPT(), planted.ids(), prescription=False)).splitlines()[:6])
    assert "Differentiated: the output against white noise, on a given batch of 2 x 16 ids." in head
    assert "1 of 16 positions" in head
    made = " ".join(str(sp.check(planted.GPT(), prescription=False)).splitlines()[:6])
    assert "Differentiated: " in made
    assert "synthetic batch" in made
    assert "white noise" not in made


def test_labels_without_a_loss_are_said_not_to_be_used():
    torch.manual_seed(0)
    model, batch = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), (torch.randn(8, 6), torch.arange(8) % 3)
    assert "8 x 6 numbers (input), 8 ids (labels). The labels were not used" in " ".join(
        str(sp.check(model, batch, prescription=False)).split()
    )
    assert "not used" not in str(sp.check(model, batch, loss="cross_entropy", prescription=False))
