"""Losses of every kind, against autograd on networks drawn one by one.

The witness knows nothing of the engine: 64 networks side by side, the loss of each differentiated at its output, and
that gradient pulled back to all parameters.
"""

import functools

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vjp, vmap
from torch.nn import functional as F

from sigprop.capture import build, predict
from sigprop.measurement import measure

NETWORKS, EXAMPLES, CLASSES, TOKENS = 64, 8, 10, 12
_GENERATOR = torch.Generator().manual_seed(2)
X = torch.randn(EXAMPLES, 20, generator=_GENERATOR)
Y = torch.randint(CLASSES, (EXAMPLES,), generator=_GENERATOR)
SOFT = torch.randn(EXAMPLES, CLASSES, generator=_GENERATOR).softmax(-1)
TARGET = torch.randn(EXAMPLES, CLASSES, generator=_GENERATOR)
WEIGHTS = torch.rand(CLASSES, generator=_GENERATOR) * 3
BITS = (torch.rand(EXAMPLES, CLASSES, generator=_GENERATOR) > 0.5).float()
IGNORED = torch.where(torch.arange(EXAMPLES) < 3, -100, Y)
IDS = torch.randint(16, (2, TOKENS), generator=_GENERATOR)
NEXT = IDS.roll(-1, 1)


def network() -> nn.Module:
    wide = [layer for _ in range(2) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), *wide, nn.Linear(64, CLASSES))


class Decoder(nn.Module):
    """One causal block of width 64."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 64)
        self.norm, self.qkv, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)
        self.mlp = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
        self.head = nn.Linear(64, 16)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return self.head(x + self.mlp(x))


def focal(out: Tensor) -> Tensor:
    right = F.log_softmax(out, -1).gather(1, Y[:, None])[:, 0]
    return -((1 - right.exp()) ** 2 * right).mean()


def worst_half(out: Tensor) -> Tensor:
    losses = F.cross_entropy(out, Y, reduction="none")
    return losses[losses > 2.3].sum() / EXAMPLES


def info_nce(out: Tensor) -> Tensor:
    unit = F.normalize(out, dim=-1)
    scores = (unit @ unit.T / 0.5).masked_fill(torch.eye(EXAMPLES, dtype=torch.bool), -1e9)
    return F.cross_entropy(scores, torch.arange(EXAMPLES) ^ 1)


LOSSES = {
    "cross-entropy": lambda out: F.cross_entropy(out, Y),
    "sum": lambda out: F.cross_entropy(out, Y, reduction="sum"),
    "none, then mean": lambda out: F.cross_entropy(out, Y, reduction="none").mean(),
    "ignored labels": lambda out: F.cross_entropy(out, IGNORED),
    "class weights": lambda out: F.cross_entropy(out, Y, weight=WEIGHTS),
    "label smoothing": lambda out: F.cross_entropy(out, Y, label_smoothing=0.5),
    "soft targets": lambda out: F.cross_entropy(out, SOFT),
    "nll of log-softmax": lambda out: F.nll_loss(F.log_softmax(out, -1), Y),
    "module": lambda out: nn.CrossEntropyLoss()(out, Y),
    "squared": lambda out: F.cross_entropy(out, Y) ** 2,
    "scaled and shifted": lambda out: 3 * F.cross_entropy(out, Y) / 7 - 1,
    "with z-loss": lambda out: F.cross_entropy(out, Y) + 0.1 * out.logsumexp(-1).square().mean(),
    "focal": focal,
    "those above a threshold": worst_half,
    "hinge": lambda out: F.multi_margin_loss(out, Y),
    "mse to zero": lambda out: F.mse_loss(out, torch.zeros_like(out)),
    "mse": lambda out: F.mse_loss(out, TARGET),
    "mse spelt out": lambda out: (out - TARGET).square().mean(),
    "weighted mse": lambda out: (WEIGHTS * (out - TARGET) ** 2).mean(),
    "l1": lambda out: F.l1_loss(out, TARGET),
    "huber": lambda out: F.huber_loss(out, TARGET, delta=0.3),
    "smooth l1": lambda out: F.smooth_l1_loss(out, TARGET),
    "gaussian nll": lambda out: F.gaussian_nll_loss(out[:, :5], TARGET[:, :5], F.softplus(out[:, 5:]) + 0.1),
    "binary cross-entropy": lambda out: F.binary_cross_entropy_with_logits(out, BITS),
    "positive weight": lambda out: F.binary_cross_entropy_with_logits(out, BITS, pos_weight=WEIGHTS),
    "distillation": lambda out: F.kl_div(F.log_softmax(out / 2, -1), SOFT, reduction="batchmean") * 4,
    "both": lambda out: 0.3 * F.cross_entropy(out, Y) + F.mse_loss(out, TARGET),
    "cosine": lambda out: 1 - F.cosine_similarity(out, TARGET).mean(),
    "log-sum-exp": lambda out: out.logsumexp(-1).mean(),
    "entropy": lambda out: -(out.softmax(-1) * out.log_softmax(-1)).sum(-1).mean(),
    "mean": lambda out: out.mean(),
    "plain sum": lambda out: out.sum(),
    "norm": lambda out: out.norm(dim=-1).mean(),
    "contrastive": info_nce,
}
COMPARING = {"contrastive": "a loss that compares tokens"}

SEQUENCES = {
    "next token": lambda out: F.cross_entropy(out.flatten(0, 1), NEXT.flatten()),
    "shifted": lambda out: F.cross_entropy(out[:, :-1].reshape(-1, 16), IDS[:, 1:].reshape(-1)),
    "smoothed": lambda out: F.cross_entropy(out.flatten(0, 1), NEXT.flatten(), label_smoothing=0.2),
    "last token": lambda out: F.cross_entropy(out[:, -1], NEXT[:, -1]),
    "pooled": lambda out: F.cross_entropy(out.mean(1), NEXT[:, 0]),
    "masked mean": lambda out: (F.cross_entropy(out.mT, NEXT, reduction="none") * (IDS > 5)).sum() / (IDS > 5).sum(),
    "squared outputs": lambda out: out.square().mean(),
}


@functools.cache
def drawn(make, batch_name: str):
    torch.manual_seed(1)
    parameters, _ = stack_module_state([make() for _ in range(NETWORKS)])
    model, batch = make(), {"x": X, "ids": IDS}[batch_name]

    def run(values):
        return functional_call(model, values, (batch,))

    with torch.no_grad():
        outputs = vmap(run)(parameters)
    return parameters, run, outputs


def measured(make, batch_name: str, loss) -> dict[str, tuple[float, float]]:
    """Second moment of every matrix's gradient, with its standard error."""
    parameters, run, outputs = drawn(make, batch_name)
    leaf = outputs.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(sum(loss(out) for out in leaf), leaf)
    pulled = vmap(lambda values, cotangent: vjp(run, values)[1](cotangent)[0])(parameters, gradient)
    found = {}
    for name, value in pulled.items():
        energy = value.detach().flatten(1).double().square().mean(1)
        if value.dim() > 2:
            found[name] = (float(energy.mean()), float(energy.std() / NETWORKS**0.5))
    return found


def require_agreement(make, batch_name: str, loss, batch, within: float = 3.0):
    profile = predict(build(make), batch, loss=loss)
    for name, (value, error) in measured(make, batch_name, loss).items():
        row = profile.parameter(name)
        distance = abs(row.grad_second_moment - value) / error
        assert distance <= within, f"{name}: {row.grad_second_moment:.4g} against {value:.4g} +- {error:.2g}"
    return profile


@pytest.mark.parametrize("name", LOSSES)
def test_a_classifier(name):
    profile = require_agreement(network, "x", LOSSES[name], X)
    statuses = {row.status for row in profile.parameters}
    assert ("assumed" in statuses) == (name in COMPARING), statuses


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_decoder(name):
    require_agreement(Decoder, "ids", SEQUENCES[name], IDS)


def test_a_wrong_loss_is_noticed():
    """The witness tells a loss from nine tenths of it."""
    profile = predict(build(network), X, loss=lambda out: 0.9 * F.mse_loss(out, TARGET))
    value, error = measured(network, "x", LOSSES["mse"])["6.weight"]
    assert profile.parameter("6.weight").grad_second_moment < value - 3 * error


def test_a_comparing_loss_is_marked():
    profile = predict(build(network), X, loss=lambda out: F.triplet_margin_loss(out[:2], out[2:4], out[4:6]))
    assert {row.status for row in profile.sites if row.name != "0"} == {"assumed"}
    assert "compares tokens" in profile["6"].reason


def test_weights_in_a_loss():
    """Weight decay in the loss: the gradient of a weight that nothing else uses is `2 decay w`."""
    decay, net = 0.1, network

    class Regularized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: Tensor):
            out = self.net(x)
            return {"logits": out, "loss": 1e-9 * out.mean() + decay * self.net[2].weight.square().sum()}

    row = predict(build(Regularized), X).parameter("net.2.weight")
    assert row.grad_second_moment == pytest.approx((2 * decay) ** 2 / (3 * 64), rel=0.05)


class SoftCapped(nn.Module):
    """A tied head behind a soft cap that hardly bends, as in Gemma."""

    def __init__(self, width=64) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(48, width), nn.RMSNorm(width)
        nn.init.normal_(self.table.weight, std=0.1)

    def forward(self, ids: Tensor) -> Tensor:
        return 30.0 * torch.tanh(self.norm(self.table(ids)) @ self.table.weight.T / 30.0)


def test_a_norm_below_a_tied_head_and_a_soft_cap():
    """What the head has in common with its own embedding passes the cap: the gain's gradient was a tenth of this."""
    ids = torch.randint(48, (1, 24), generator=torch.Generator().manual_seed(5))
    loss = lambda out: F.cross_entropy(out[0, :-1], ids[0, 1:])  # noqa: E731
    measured = measure(None, ids, loss, build=SoftCapped, seeds=64).parameter("norm.weight")
    predicted = predict(build(SoftCapped), ids, loss=loss).parameter("norm.weight")
    error = abs(predicted.grad_second_moment / measured.grad_second_moment - 1.0)
    assert error <= 0.05 + 4.0 * measured.errors["grad_second_moment"] / measured.grad_second_moment
