"""Every number against a brute-force computation: keep all tensors, then float64, pair by pair."""

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sigprop.measurement import measure
from sigprop.measurement.moments import Moments
from sigprop.models import build

COMPARED = 1e-6


class Everything:
    """Stores the first floating-point output of every module call, and its gradient."""

    def __init__(self, model):
        self.values, self.gradients, self.calls = {}, {}, {}
        self.forward = True
        self.handles = [
            module.register_forward_hook(self.hook(name or "(output)")) for name, module in model.named_modules()
        ]

    def hook(self, name):
        def keep(module, inputs, output):
            if not self.forward:
                return
            call = self.calls[name] = self.calls.get(name, 0) + 1
            label = name if call == 1 else f"{name}@{call}"
            if hasattr(output, "values") and not isinstance(output, torch.Tensor):
                output = tuple(output.values())
            if isinstance(output, tuple):
                tensors = [x for x in output if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dim()]
                output = tensors[0] if tensors else None
            if isinstance(output, torch.Tensor) and output.is_floating_point():
                self.values[label] = output.detach().clone()
                if output.requires_grad:
                    output.register_hook(lambda gradient: self.gradients.setdefault(label, gradient.clone()))

        return keep


def as_tokens(x, batch):
    """(sequences, tokens, channels) as an array."""
    x = x.double().numpy()
    if x.ndim == 2:
        return x[:, None, :] if len(x) == batch else x[None]
    if x.ndim == 4:
        return x.reshape(*x.shape[:2], -1).swapaxes(1, 2)
    return x


def pair_correlation(x, keep, centre):
    """The mean cosine over all pairs of different tokens of a sequence, by looping over pairs.

    A token whose vector is a millionth of the longest is rounding noise and has no direction.
    """
    averages = []
    longest = ((x - centre) ** 2).sum(-1)[keep].max()
    for sequence, kept in zip(x, keep, strict=True):
        vectors = [row - centre for row, good in zip(sequence, kept, strict=True) if good]
        vectors = [row / np.sqrt((row**2).sum()) for row in vectors if (row**2).sum() > 1e-12 * longest]
        pairs = [float(a @ b) for i, a in enumerate(vectors) for b in vectors[:i]]
        if pairs:
            averages.append(math.fsum(pairs) / len(pairs))
    return math.fsum(averages) / len(averages) if averages else math.nan


def check(row, value, gradient, keep):
    entries = value[keep]
    mean = entries.mean()
    assert row.mean == pytest.approx(mean, abs=COMPARED * max(abs(mean), entries.std(), 1e-12))
    assert row.variance == pytest.approx(entries.var(), rel=COMPARED, abs=1e-13 * (entries**2).mean())
    if entries.var() > 1e-12 * (entries**2).mean():
        expected = pair_correlation(value, keep, mean)
        assert row.token_correlation == pytest.approx(expected, abs=COMPARED, nan_ok=True)
    if gradient is None:
        assert math.isnan(row.grad_variance)
        return
    assert row.grad_variance == pytest.approx((gradient[keep] ** 2).mean(), rel=COMPARED, abs=1e-30)
    expected = pair_correlation(gradient, keep, 0.0)
    assert row.grad_token_correlation == pytest.approx(expected, abs=COMPARED, nan_ok=True)


BRUTE = [
    "decoder",
    "decoder padded",
    "encoder post rms swiglu rotary",
    "sandwich sinusoidal dropout",
    "no norm, learned scales, fused",
    "encoder-decoder",
    "vit",
    "vit post-norm relu",
    "mlp",
    "mlp norm on preactivations",
    "mlp norm on activations",
    "resnet layer norm",
    "resnet batch norm",
    "mixer",
    "gpt2",
    "llama",
    "bert",
    "t5",
    "hf vit",
    "lstm",
    "shared layer",
    "checkpointed",
    "in place",
    "frozen",
]


@pytest.mark.parametrize("name", BRUTE)
def test_agrees_with_brute_force(make_specimen, name):
    model, batch, loss = make_specimen(name)
    loss = loss or (lambda output: output.loss if hasattr(output, "loss") else output.square().mean())
    torch.manual_seed(1)
    profile = measure(model, batch, loss)
    stored = Everything(model)
    torch.manual_seed(1)
    output = model(**batch) if isinstance(batch, dict) else model(*batch) if isinstance(batch, tuple) else model(batch)
    stored.forward = False
    loss(output).backward()

    rows = {row.name: row for row in profile}
    assert set(stored.values) <= set(rows)
    inputs = next(iter(batch.values())) if isinstance(batch, dict) else batch[0] if isinstance(batch, tuple) else batch
    padding = batch.get("attention_mask") if isinstance(batch, dict) else None
    for label, value in stored.values.items():
        value = as_tokens(value, len(inputs))
        keep = np.ones(value.shape[:2], dtype=bool)
        if padding is not None and keep.shape == padding.shape:
            keep = padding.numpy().astype(bool)
        gradient = stored.gradients.get(label)
        gradient = None if gradient is None else as_tokens(gradient, len(inputs))
        check(rows[label], value, gradient, keep)

    for parameter, row in zip(model.named_parameters(), profile.parameters, strict=True):
        name, weight = parameter
        assert row.name == name
        exact = weight.detach().double()
        assert row.init_std == pytest.approx(float(exact.std(correction=0)), rel=1e-6, abs=1e-12)
        assert row.extras["second_moment"] == pytest.approx(float(exact.square().mean()), rel=COMPARED)
        if weight.grad is None:
            assert math.isnan(row.grad_second_moment)
        else:
            expected = float(weight.grad.double().square().mean())
            assert row.grad_second_moment == pytest.approx(expected, rel=COMPARED, abs=1e-30)


def test_autocast_and_fast_products_do_not_reach_the_sums():
    """The model may multiply in bfloat16; the statistics of its float32 tensors may not."""
    torch.manual_seed(0)
    model = build("transformer", vocabulary=29, context=96, width=64, depth=1, heads=2)
    tokens = torch.arange(3 * 96).reshape(3, 96) * 7 % 29
    loss = lambda output: output.float().square().mean()  # noqa: E731
    products = getattr(torch.backends.mkldnn, "matmul", SimpleNamespace(fp32_precision="ieee"))  # since torch 2.9
    before, products.fp32_precision = products.fp32_precision, "bf16"
    try:
        with torch.autocast("cpu", torch.bfloat16):
            profile = measure(model, tokens, loss)
            stored = Everything(model)
            output = model(tokens)
            stored.forward = False
            loss(output).backward()
        assert products.fp32_precision == "bf16"
    finally:
        products.fp32_precision = before
    kinds = {value.dtype for value in stored.values.values()}
    assert kinds == {torch.float32, torch.bfloat16}
    for label, value in stored.values.items():
        keep = np.ones((3, 96), dtype=bool) if len(value) == 3 else np.ones((1, 96), dtype=bool)
        check(profile[label], as_tokens(value, 3), as_tokens(stored.gradients[label], 3), keep)


def test_reentrant_checkpointing_gives_the_same_profile(make_specimen):
    """Recomputed tensors get the gradients; the numbers are those of the model without checkpointing."""
    torch.manual_seed(1)
    plain = make_specimen("checkpointed")
    reentrant = make_specimen("checkpointed reentrant")
    profiles = []
    for specimen in (plain, reentrant):
        torch.manual_seed(1)
        profiles.append(measure(*specimen))
    for ours, theirs in zip(*profiles, strict=True):
        assert ours.name == theirs.name
        for column in ours.COLUMNS:
            assert getattr(ours, column) == pytest.approx(getattr(theirs, column), rel=1e-6, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("shape", [(3, 1, 7), (2, 5, 1), (1, 64, 40), (5, 3, 9000), (40, 4, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_blocks_do_not_show(monkeypatch, shape, dtype):
    """Small blocks cut sequences anywhere; the numbers stay those of the whole tensor."""
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) + 0.5).to(dtype)
    whole = Moments().signal(x), Moments().gradient(x)
    monkeypatch.setattr(sys.modules[Moments.__module__], "BLOCK", {"cpu": 100})
    cut = Moments().signal(x), Moments().gradient(x)
    for left, right in zip(whole, cut, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-14, equal_nan=True)


def test_a_large_mean_does_not_spoil_the_variance():
    """Values around a million with spread one: float32 sums would lose every digit."""
    noise = torch.randn(4, 50, 64, generator=torch.Generator().manual_seed(0))
    x = (noise + 1e6).float()
    mean, variance, correlation = Moments().signal(x)
    exact = x.double().numpy()
    assert mean == pytest.approx(exact.mean(), rel=1e-12)
    assert variance == pytest.approx(exact.var(), rel=1e-4)
    expected = pair_correlation(exact, np.ones((4, 50), dtype=bool), exact.mean())
    assert correlation == pytest.approx(expected, abs=1e-5)


def test_padding_is_left_out_whatever_it_holds():
    x = torch.randn(3, 128, 50, generator=torch.Generator().manual_seed(0)) + 0.5
    mask = torch.rand(3, 128, generator=torch.Generator().manual_seed(1)) > 0.3
    for garbage in (1e3, math.inf, math.nan):
        dirty = torch.where(mask[:, :, None], x, garbage)
        signal, gradient = Moments().signal(dirty, mask), Moments().gradient(dirty, mask)
        torch.testing.assert_close(signal, Moments().signal(x, mask), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(gradient, Moments().gradient(x, mask), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e15])
def test_tiny_and_huge_gradients_keep_their_direction(scale):
    x = torch.randn(2, 70, 60, generator=torch.Generator().manual_seed(0))
    plain, scaled = Moments().gradient(x), Moments().gradient(x * scale)
    assert float(scaled[2]) == pytest.approx(float(plain[2]), abs=1e-6)
    assert float(scaled[1]) == pytest.approx(float(plain[1]) * scale**2, rel=1e-5)
