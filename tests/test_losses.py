"""What is differentiated: one rule for prediction and measurement."""

import functools
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sigprop.capture import build, predict
from sigprop.errors import InputError
from sigprop.losses import NOISE, OWN, loss_name, objective
from sigprop.measurement import measure

IDS = torch.randint(32, (2, 8), generator=torch.Generator().manual_seed(0))
X = torch.randn(6, 12, generator=torch.Generator().manual_seed(1))


class Nano(nn.Module):
    """As nanoGPT: logits and loss, or logits and None."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(32, 64), nn.Linear(64, 32)

    def forward(self, ids: Tensor, targets: Tensor | None = None):
        logits = self.head(self.embedding(ids))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


@dataclass
class Answer:
    hidden: Tensor
    total: Tensor


def grown(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def test_the_models_own_loss_is_found_wherever_it_is_returned():
    logits, loss = grown(2, 4), grown(1).sum()
    accuracy = torch.tensor(0.5)
    for output in ((logits, loss), [loss, logits], {"logits": logits, "loss": loss}, {"a": logits, "b": loss}, loss):
        found = objective(output, None)
        assert found.tensor is loss
        assert found.name == OWN
    assert objective((logits, loss, accuracy), None).tensor is loss
    assert objective(Answer(logits, loss), None).tensor is loss


def test_without_a_loss_the_first_floating_output_meets_noise():
    logits = grown(2, 4)
    for output in (logits, (torch.arange(3), logits), {"logits": logits, "loss": None}, (logits, None)):
        found = objective(output, None)
        assert found.tensor is logits
        assert found.name == NOISE


def test_two_numbers_are_not_guessed_between():
    with pytest.raises(InputError, match="say which is the loss"):
        objective((grown(1).sum(), grown(1).sum()), None)


def test_named_losses_use_the_labels_of_the_batch():
    logits, labels = grown(2, 3, 5), torch.tensor([[0, 1, -100], [4, 3, 2]])
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(objective(logits, {"labels": labels}, "cross_entropy").tensor, expected)
    target = torch.randn(2, 3, 5)
    torch.testing.assert_close(objective(logits, {"labels": target}, "mse").tensor, F.mse_loss(logits, target))
    torch.testing.assert_close(objective(logits, X, "mse").tensor, logits.square().mean())


def test_random_targets_are_the_same_every_time():
    logits = grown(3, 7, 2, 2)
    first, second = (objective(logits, X, "cross_entropy").tensor for _ in range(2))
    assert first == second


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_labels_that_do_not_fit_are_refused(loss):
    with pytest.raises(InputError, match="do not fit"):
        objective(grown(2, 3, 5), {"labels": torch.zeros(2, dtype=torch.long)}, loss)


def test_what_cannot_be_a_loss_is_refused():
    with pytest.raises(InputError, match="'hinge' is not allowed"):
        objective(grown(2, 2), None, "hinge")
    with pytest.raises(InputError, match="needs a tensor with one number"):
        objective(grown(2, 2), None, lambda output: output)
    with pytest.raises(InputError, match=r"function broken, failed on .output. with ZeroDivisionError"):
        objective(grown(2, 2), None, broken)


def broken(output: Tensor) -> Tensor:
    return output.sum() * (1 // 0)


def scaled(output: Tensor, by: float = 1.0) -> Tensor:
    return by * output.sum()


def test_losses_have_words():
    assert loss_name(scaled) == "function scaled"
    assert loss_name(functools.partial(scaled, by=2.0)) == "function scaled with by=2.0"
    assert loss_name(nn.MSELoss()) == "function MSELoss()"
    first = lambda output: output.sum()  # noqa: E731
    second = lambda output: output.mean()  # noqa: E731
    assert loss_name(first) != loss_name(second)


def test_prediction_and_measurement_differentiate_nanogpt_alike():
    batch = (IDS, IDS.roll(1))
    predicted = predict(build(Nano), batch)
    measured = measure(None, batch, build=Nano, seeds=24)
    assert predicted.meta["loss"] == measured.meta["loss"] == OWN
    row = predicted.parameter("head.weight")
    seen = measured.parameter("head.weight")
    assert abs(row.grad_second_moment - seen.grad_second_moment) < 5 * seen.errors["grad_second_moment"]


@pytest.mark.parametrize("loss", [None, "cross_entropy", "mse", "noise"])
def test_one_word_for_both(loss):
    make = lambda: nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5))  # noqa: E731
    predicted, measured = predict(build(make), X, loss=loss), measure(make(), X, loss)
    assert predicted.meta["loss"] == measured.meta["loss"] == (loss or "noise")


def test_two_losses_are_not_compared():
    make = lambda: nn.Linear(12, 5)  # noqa: E731
    with pytest.raises(InputError, match="different losses: 'cross_entropy' and 'noise'"):
        predict(build(make), X, loss="cross_entropy").compare(measure(make(), X))
