"""Bugs in recurrent networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.planted_bugs.case import Setting, bug
from studies.planted_bugs.parts import VOCABULARY, fill, noise, text

HIDDEN = 64


class Recurrent(nn.Module):
    """A recurrent language model."""

    def __init__(self, kind: type = nn.LSTM):
        super().__init__()
        self.emb, self.rnn, self.out = (
            nn.Embedding(VOCABULARY, HIDDEN),
            kind(HIDDEN, HIDDEN, batch_first=True),
            nn.Linear(HIDDEN, VOCABULARY),
        )

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.out(self.rnn(self.emb(ids))[0]).flatten(0, 1), targets.flatten())


class Recalling(nn.Module):
    """The first input must be told at the end."""

    def __init__(self, rnn: nn.Module):
        super().__init__()
        self.rnn, self.out = rnn, nn.Linear(HIDDEN, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, -1])


def recalled(model: nn.Module) -> Setting:
    wanted = torch.arange(16) % 4
    x = 0.3 * noise(16, 32, 8)
    x[:, 0, :4] += 4.0 * F.one_hot(wanted, 4)
    return Setting(model, x, lambda output: F.cross_entropy(output, wanted))


@bug(
    "recurrent",
    "recurrent weights of an LSTM from N(0, 4)",
    at="weight_hh|rnn",
    cause="weight_hh|recurrent|saturat|std",
    fix="weight_hh|orthogonal",
    mend=lambda m: nn.init.orthogonal_(m.rnn.weight_hh_l0),
)
def loud_recurrence(buggy: bool) -> Setting:
    model: Any = Recurrent()
    nn.init.normal_(model.rnn.weight_hh_l0, 0.0, 4.0 if buggy else HIDDEN**-0.5)
    return Setting(model, text())


@bug(
    "recurrent",
    "a plain RNN whose recurrent matrix is 0.1 of the identity forgets its first input",
    at="weight_hh|rnn",
    cause="recurrent|weight_hh|vanish|forget|shrink|time|steps",
    fix="weight_hh|identity|orthogonal",
    mend=lambda m: nn.init.eye_(m.rnn.weight_hh_l0),
)
def forgetful(buggy: bool) -> Setting:
    model: Any = Recalling(nn.RNN(8, HIDDEN, nonlinearity="relu", batch_first=True))
    nn.init.normal_(model.rnn.weight_ih_l0, 0.0, 0.1)
    fill(model.rnn, "bias_ih_l0", 0.0)
    fill(model.rnn, "bias_hh_l0", 0.0)
    model.rnn.weight_hh_l0.data = torch.eye(HIDDEN) * (0.1 if buggy else 1.0)
    return recalled(model)


@bug(
    "recurrent",
    "update gates of a GRU that never open",
    at="bias_(ih|hh)|rnn",
    cause="gate|bias|saturat|does not depend|shut|closed",
    fix="bias",
    mend=lambda m: m.rnn.bias_ih_l0.zero_(),
)
def shut_update(buggy: bool) -> Setting:
    model: Any = Recurrent(nn.GRU)
    with torch.no_grad():
        model.rnn.bias_ih_l0.zero_()
        model.rnn.bias_ih_l0[HIDDEN : 2 * HIDDEN] = 25.0 if buggy else 0.0
    return Setting(model, text())


class Detaching(nn.Module):
    """A cell in a loop that carries its state over."""

    detached = True

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(8, HIDDEN)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        state, states = x.new_zeros(len(x), HIDDEN), []
        for step in x.unbind(1):
            state = self.cell(step, state.detach() if self.detached else state)
            states.append(state)
        return torch.stack(states, 1), None


@bug(
    "recurrent",
    "the state is detached at every step",
    at="rnn|cell|input",
    cause="detach|no gradient|not reach|cut",
    fix="detach",
    mend=lambda m: setattr(m.rnn, "detached", False),
)
def detached_state(buggy: bool) -> Setting:
    model: Any = Recalling(Detaching())
    model.rnn.detached = buggy
    return recalled(model)


class Independent(nn.Module):
    """IndRNN: each unit has one recurrent weight."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.recur = nn.Linear(8, HIDDEN), nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        state, states = x.new_zeros(len(x), HIDDEN), []
        for step in x.unbind(1):
            state = F.relu(self.enter(step) + self.recur * state)
            states.append(state)
        return torch.stack(states, 1), None


@bug(
    "recurrent",
    "the recurrent weights of an IndRNN are 1.8",
    at="recur|rnn",
    cause="recur|time|steps|grow|explo",
    fix="recur",
    mend=lambda m: fill(m.rnn, "recur", 1.0),
)
def growing_units(buggy: bool) -> Setting:
    model: Any = Recalling(Independent())
    fill(model.rnn, "recur", 1.8 if buggy else 1.0)
    return recalled(model)


@bug(
    "recurrent",
    "twelve stacked tanh layers shrink the signal by their small weights",
    at="rnn",
    cause="shrink|small|vanish|std",
    fix="weight_ih|std|xavier|gain",
    mend=lambda m: [nn.init.xavier_normal_(p) for n, p in m.rnn.named_parameters() if "weight_ih" in n],
)
def shrinking_stack(buggy: bool) -> Setting:
    model: Any = Recurrent(lambda inputs, hidden, batch_first: nn.RNN(inputs, hidden, 8, batch_first=batch_first))  # type: ignore[arg-type]
    for name, weight in model.rnn.named_parameters():
        if "weight_ih" in name:
            nn.init.normal_(weight, 0.0, 0.03 if buggy else HIDDEN**-0.5)
        if "weight_hh" in name:
            nn.init.orthogonal_(weight, 0.5)
    return Setting(model, text())
