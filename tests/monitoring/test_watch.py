"""A plain loop, watched: the training is not touched, and what is told is what `measure` tells."""

import json
import math
import warnings

import pytest
import torch
from torch import nn

from sigprop.errors import InputError, NonFiniteError, UnknownNameError
from sigprop.measurement import measure
from sigprop.monitoring import Watch, WatchWarning, read_samples, updates
from sigprop.monitoring.scalars import worst
from tests.monitoring.shared import TOKENS, VOCABULARY, batches, language_loss, small_model, train


def hooks_on(model: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    on_modules = sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)
    return on_modules + sum(bool(p._backward_hooks) for p in model.parameters())


@pytest.fixture
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("error", WatchWarning)
        yield


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_losses_and_weights_are_bitwise_those_of_an_unwatched_run(dropout, tmp_path):
    data = batches(7)
    plain, watched = small_model(dropout=dropout), small_model(dropout=dropout)
    torch.manual_seed(5)
    expected = train(plain, data)
    torch.manual_seed(5)
    with Watch(watched, every=2, folder=tmp_path) as watch:
        assert train(watched, data, watch) == expected
    assert [sample.step for sample in watch.history] == [0, 2, 4, 6]
    for left, right in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(left, right)


@pytest.mark.usefixtures("quiet")
def test_hooks_are_on_in_sampled_steps_only(tmp_path):
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen = []
    with Watch(model, every=3, folder=tmp_path) as watch:
        for tokens in batches(7):
            seen.append(hooks_on(model) > 0)
            train(model, [tokens], watch, optimizer)
    assert seen == [True, False, False, True, False, False, True]
    assert hooks_on(model) == 0
    assert updates._ATTACHED._meters == ()


@pytest.mark.usefixtures("quiet")
def test_a_sample_agrees_with_measure_and_with_the_step_that_was_made(tmp_path):
    model, (tokens,) = small_model(), batches(1)
    profile = measure(model, tokens, language_loss, junctions=True, scores=True)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with Watch(model, every=1, folder=tmp_path) as watch:
        train(model, [tokens], watch)
    sample = watch.latest
    assert {row.name for row in profile} == set(sample.sites)
    for row in profile:
        for column in ("mean", "variance", "token_correlation", "grad_variance", "grad_token_correlation"):
            if not math.isnan(getattr(row, column)) and not (row.name.endswith(".scores") and "grad" in column):
                assert sample.sites[row.name][column] == pytest.approx(getattr(row, column), rel=1e-5, abs=1e-9)
        if row.name.endswith(".scores"):
            assert sample.sites[row.name]["entropy"] == pytest.approx(row.extras["entropy"], rel=1e-6)
    for name, parameter in model.named_parameters():
        change = (parameter.detach() - before[name]).norm()
        got, length = sample.parameters[name], before[name].norm()
        if length > 0:
            assert got["update_ratio"] == pytest.approx(float(change / length), rel=1e-4)
        assert got["grad_second_moment"] == pytest.approx(profile.parameter(name).grad_second_moment, rel=1e-4)
    for name, row in sample.sites.items():
        if "branch_ratio" in row:
            assert 0.0 < row["branch_ratio"] < 10.0, name
    assert sum("branch_ratio" in row for row in sample.sites.values()) == 6


@pytest.mark.usefixtures("quiet")
def test_accumulated_micro_batches_and_evaluations_leave_the_first_pass_alone(tmp_path):
    model, data = small_model(), batches(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    expected = measure(model, data[0], lambda logits: language_loss(logits, data[0]) / 2)
    with Watch(model, every=1, folder=tmp_path) as watch:
        with torch.no_grad():
            model(torch.zeros(2, TOKENS, dtype=torch.long))
        for tokens in data:
            (language_loss(model(tokens), tokens) / 2).backward()
        optimizer.step()
        sample = watch.step()
    assert sample.sites["blocks.1"]["variance"] == pytest.approx(expected["blocks.1"].variance, rel=1e-5)
    assert sample.sites["blocks.1"]["grad_variance"] == pytest.approx(expected["blocks.1"].grad_variance, rel=1e-5)


def test_checkpointed_blocks_are_seen_once_with_their_gradient(tmp_path):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))

        def forward(self, x):
            for block in self.blocks:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            return x

    torch.manual_seed(0)
    model, x = Checkpointed(), torch.randn(4, 5, 8)
    expected = measure(model, x, lambda y: y.square().mean())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Watch(model, every=1, folder=tmp_path) as watch:
        model(x).square().mean().backward()
        optimizer.step()
        sample = watch.step()
    for row in expected:
        assert sample.sites[row.name]["grad_variance"] == pytest.approx(row.grad_variance, rel=1e-5)


def test_a_loss_scale_is_taken_out_of_the_gradients(tmp_path):
    model, (tokens,) = small_model(), batches(1)
    expected = measure(model, tokens, language_loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with Watch(model, every=1, scaler=scaler, folder=tmp_path) as watch:
        scaler.scale(language_loss(model(tokens), tokens)).backward()
        scaler.step(optimizer)
        scaler.update()
        sample = watch.step()
    assert sample.run["loss_scale"] == 1024.0
    assert sample.sites["blocks.1"]["grad_variance"] == pytest.approx(expected["blocks.1"].grad_variance, rel=1e-5)
    wanted = expected.parameter("head.weight").grad_second_moment
    assert sample.parameters["head.weight"]["grad_second_moment"] == pytest.approx(wanted, rel=1e-5)


def test_compiled_models_run_eagerly_in_sampled_steps_only(tmp_path):
    model, data = small_model(), batches(4)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=backend)
    with Watch(compiled, every=3, folder=tmp_path) as watch:
        train(compiled, data[:1], watch)
        assert not graphs
        train(compiled, data[1:3], watch)
        assert len(graphs) == 1
        train(compiled, data[3:], watch)
    assert len(graphs) == 1
    assert [sample.step for sample in watch.history] == [0, 3]
    assert "blocks.1" in watch.latest.sites


def test_keys_do_not_grow_with_depth(tmp_path):
    counts = []
    for depth in (3, 6):
        model = small_model(depth=depth)
        with Watch(model, every=1, folder=tmp_path / str(depth)) as watch:
            train(model, batches(1), watch)
        counts.append(len(watch.scalars.values))
        assert set(watch.scalars.names) <= set(watch.scalars.values)
        assert len(watch.everything()) > len(watch.scalars.values)
    assert counts[0] == counts[1]


def test_the_noise_of_the_gradient_is_that_of_examples_drawn_at_random(tmp_path):
    """A linear model with Gaussian targets: the gradient of a shift has covariance s^2 / d^2 and mean -2 m / d."""
    torch.manual_seed(0)
    width, examples, shift, spread = 4, 64, 0.5, 2.0
    model = nn.LayerNorm(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with Watch(model, every=1, folder=tmp_path) as watch:
        for _ in range(32):
            x = torch.randn(examples, 1, width)
            target = shift + spread * torch.randn(examples, 1, width)
            loss = (model(x) - x - target).square().sum(2).mean() / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.step(loss)
    difference = torch.randn(20000, 1, width)
    residual = (nn.LayerNorm(width)(difference) - difference).detach()
    exact = width * (spread**2 + float(residual.var())) / (width * shift**2)
    assert watch.latest.run["noise_scale"] == pytest.approx(exact, rel=0.25)


def test_parameters_that_are_not_trained_are_left_out(tmp_path):
    model = small_model()
    for parameter in model.blocks.parameters():
        parameter.requires_grad_(False)
    with Watch(model, every=1, folder=tmp_path) as watch:
        train(model, batches(2), watch)
    assert not any(name.startswith("blocks") for name in watch.latest.parameters)
    assert "head.weight" in watch.latest.parameters


def test_warnings_name_what_is_wrong_and_training_goes_on(tmp_path):
    model, data = small_model(), batches(2)
    first = Watch(model, every=1, folder=tmp_path)
    with pytest.warns(WatchWarning, match="watched already"):
        second = Watch(model, every=1, folder=tmp_path)
    assert first._closed
    with pytest.warns(WatchWarning, match="was not run"):
        second.step(1.0)
    loss = language_loss(model(data[0]), data[0])
    with pytest.warns(WatchWarning, match=r"no gradient reached.*backward"):
        second.step(loss)
    second.close()
    with pytest.warns(WatchWarning, match="closed"):
        second.step(loss)
    assert hooks_on(model) == 0


def test_a_sink_that_fails_is_named_and_left_out(tmp_path):
    class Broken:
        name = "broken"

        def write(self, step, scalars):
            raise ConnectionError("no route to host")

        def tell(self, step, finding): ...

        def close(self): ...

    model = small_model()
    with (
        pytest.warns(WatchWarning, match=r"sink broken failed.*no route"),
        Watch(model, every=1, folder=tmp_path, sinks=[Broken()]) as watch,
    ):
        losses = train(model, batches(3), watch)
    assert len(losses) == 3
    assert len(read_samples(tmp_path)) == 3


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    model = small_model()
    with (
        pytest.warns(WatchWarning, match="cannot be written"),
        Watch(model, every=1, folder=tmp_path / "file" / "x") as watch,
    ):
        train(model, batches(2), watch)
    assert len(watch.history) == 2


def test_a_failure_of_ours_is_told_and_the_step_is_made(tmp_path):
    model, data = small_model(), batches(3)
    expected = train(small_model(), data)
    with (
        pytest.warns(WatchWarning, match="could not be sampled"),
        Watch(model, every=1, folder=tmp_path, token_axes=7) as watch,
    ):
        assert train(model, data, watch) == expected


def test_stop_on_nonfinite_raises_and_leaves_the_last_good_rows(tmp_path):
    model, data = small_model(), batches(6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = Watch(model, every=2, folder=tmp_path, stop_on="nonfinite")
    train(model, data[:4], watch, optimizer)
    with torch.no_grad():
        next(iter(model.blocks[1].parameters())).fill_(math.nan)
    with pytest.raises(NonFiniteError, match=r"blocks\.1"):
        train(model, data[4:], watch, optimizer)
    crash = json.loads((tmp_path / "crash.json").read_text())
    assert crash["samples"][-2]["step"] == 2
    assert crash["samples"][-2]["bad"] is None
    assert hooks_on(model) == 0


def test_a_crash_inside_a_sampled_step_names_the_module(tmp_path):
    model = small_model()
    with pytest.raises(IndexError), Watch(model, every=1, folder=tmp_path) as watch:
        train(model, [*batches(1), torch.full((2, TOKENS), VOCABULARY)], watch)
    crash = json.loads((tmp_path / "crash.json").read_text())
    assert crash["inside"] == "token_embedding"
    assert len(crash["samples"]) == 1
    assert hooks_on(model) == 0


def test_a_resumed_run_continues_its_history(tmp_path):
    model, data = small_model(), batches(8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with Watch(model, every=2, folder=tmp_path) as watch:
        train(model, data, watch, optimizer)
    with Watch(model, every=2, folder=tmp_path, start=4) as resumed:
        assert [sample.step for sample in resumed.history] == [0, 2]
        train(model, data[4:], resumed, optimizer)
    assert [sample.step for sample in read_samples(tmp_path)] == [0, 2, 4, 6]
    with Watch(model, every=2, folder=tmp_path) as fresh:
        assert len(fresh.history) == 0


def test_wrong_arguments_are_refused_with_what_is_allowed(tmp_path):
    with pytest.raises(InputError, match=r"nn\.Module"):
        Watch("model", folder=tmp_path)
    with pytest.raises(InputError, match="every"):
        Watch(small_model(), every=0, folder=tmp_path)
    with pytest.raises(InputError, match="stop_on"):
        Watch(small_model(), stop_on="nan", folder=tmp_path)
    with pytest.raises(UnknownNameError, match="tensorboard"):
        Watch(small_model(), sinks=["tensorbord"], folder=tmp_path)


def test_a_run_that_diverges_is_watched_to_its_end():
    """A saturated layer has a gradient of zero beside one of 1e30: their ratio is no number of a float."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    with Watch(net, optimizer, every=10) as watch:
        for _ in range(41):
            batch = torch.randn(16, 8)
            loss = (net(batch) - batch.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.step(loss)
    assert any("learning rate is too high" in str(finding) for finding in watch.findings)
    assert worst("gradient", [1e30, 0.0, 2e30]) == 1
