"""How a pass is wired: each mistake is found in a small model, and its correct twin has no such finding."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sigprop.checks.reshapes import is_turned
from tests.checks.test_answers import answered
from tests.checks.test_operations import IDS, Made, Masked, X

WIDTH, SHAPES = 16, ((4, 12, 16), (4, 3, 16, 16))
SIGNAL, IMAGES = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in SHAPES)


class Layer(nn.Module):
    """Attention and an MLP, each with its norm."""

    def __init__(self, wrong: str = ""):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down, self.wrong = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), wrong

    def heads(self, part):
        if self.wrong == "heads":
            return part.reshape(len(part), 2, -1, WIDTH // 2)
        return part.view(*part.shape[:2], 2, -1).transpose(1, 2)

    def forward(self, x):
        query, key, value = self.qkv(self.norm1(x)).chunk(3, -1)
        value = key if self.wrong == "chunk" else value
        mixed = F.scaled_dot_product_attention(*map(self.heads, (query, key, value)))
        attended = self.proj(mixed.transpose(1, 2).reshape(x.shape))
        x = attended if self.wrong == "skip" else x if self.wrong == "dropped" else x + attended
        hidden = self.up(self.norm2(x))
        return x + self.down(hidden if self.wrong == "linear" else F.gelu(hidden))


class Stack(nn.Module):
    def __init__(self, wrong: str = ""):
        super().__init__()
        layers = [Layer(wrong) for _ in range(3)]
        layers = [layers[0]] * 3 if wrong == "shared" else layers
        self.layers, self.out, self.wrong = nn.ModuleList(layers), nn.Linear(WIDTH, 5), wrong
        if wrong == "list":
            del self.layers
            self.__dict__["layers"] = layers

    def forward(self, x):
        for layer in self.layers[:2] if self.wrong == "range" else self.layers:
            x = layer(x)
        return self.out(x)


class Patches(nn.Module):
    """Images to classes over a sequence of patches."""

    def __init__(self, wrong: str = ""):
        super().__init__()
        self.cut = nn.Conv2d(3, WIDTH, 2, stride=4 if wrong == "stride" else 2)
        self.layer, self.out, self.wrong = Layer(), nn.Linear(WIDTH, 4), wrong

    def forward(self, x):
        x = self.cut(x)
        x = x.reshape(len(x), -1, WIDTH) if self.wrong == "patches" else x.flatten(2).transpose(1, 2)
        return self.out(self.layer(x).mean(1))


class Timed(nn.Module):
    """Positions and steps as sines."""

    def __init__(self, wrong: str = ""):
        super().__init__()
        self.emb, self.layer, self.out, self.wrong = nn.Embedding(32, WIDTH), Layer(), nn.Linear(WIDTH, 5), wrong

    def forward(self, ids, t):
        kind = torch.bfloat16 if self.wrong == "rounded" else torch.float32
        places = torch.arange(ids.shape[1], dtype=kind).float()
        step = t / 1000 if self.wrong == "slow" else t.float()
        pace = 1e-4 ** (torch.arange(WIDTH // 2) / (WIDTH // 2))
        codes = [torch.cat([(item[:, None] * pace).sin(), (item[:, None] * pace).cos()], -1) for item in (places, step)]
        return self.out(self.layer(self.emb(ids) + codes[0] + codes[1][:, None]))


STEPS = {"ids": IDS[:1].repeat(4, 25), "t": torch.arange(4) * 250}
CASES = {
    "heads split by a reshape": (Stack, "heads", SIGNAL, "mixed_axes", "(4, 2, 12, 8) of (4, 12, 16)"),
    "patches made by a reshape": (Patches, "patches", IMAGES, "mixed_axes", "transpose"),
    "an MLP without activation": (Stack, "linear", SIGNAL, "mixed_axes", "layers.0.up and layers.0.down"),
    "attention that is computed and dropped": (Stack, "dropped", SIGNAL, "lost_modules", "layers.0.proj runs"),
    "layers in a plain list": (Stack, "list", SIGNAL, "lost_modules", "does not know"),
    "one layer three times": (Stack, "shared", SIGNAL, "lost_modules", "layers.0 to layers.2 are one and the same"),
    "keys in place of values": (Stack, "chunk", SIGNAL, "unread_parts", "rows 32 to 47 of 48 of layers.0.qkv.weight"),
    "a stride beyond the kernel": (Patches, "stride", IMAGES, "unread_parts", "50% of the places"),
    "attention without a skip": (Stack, "skip", SIGNAL, "missing_skip", "no skip around it, nor have 2 more"),
    "positions in bfloat16": (Timed, "rounded", STEPS, "codes", "bfloat16"),
    "steps from 0 to 1 in sines": (Timed, "slow", STEPS, "codes", "nearly the same"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_of_wiring_is_found_and_its_correct_twin_is_not_accused(name):
    make, wrong, batch, kind, title = CASES[name]
    torch.manual_seed(0)
    found = answered(make(wrong), batch)
    assert title in f"{found[kind].title} {found[kind].prescription.text}"
    assert found[kind].severity in ("warning", "problem")
    correct = answered(make(), batch)
    kinds = {"mixed_axes", "lost_modules", "unread_parts", "codes", "missing_skip", "drowned_part"}
    assert not kinds & set(correct), correct


@pytest.mark.parametrize(
    ("before", "after", "turned"),
    [
        ((2, 12, 16), (2, 4, 12, 4), True),
        ((2, 4, 12, 4), (2, 12, 16), True),
        ((2, 16, 6, 4), (2, 24, 16), True),
        ((2, 24, 16), (2, 16, 6, 4), True),
        ((5, 7, 3), (7, 5, 3), True),
        ((2, 3, 8, 9), (2, 8, 9, 3), True),
        ((2, 12, 16), (2, 12, 4, 4), False),
        ((2, 12, 16), (24, 16), False),
        ((2, 12, 16), (2, 6, 32), False),
        ((2, 6, 4, 16), (2, 24, 16), False),
        ((2, 4, 12, 13), (2, 4, 13, 12), False),
        ((2, 8, 8, 16), (2, 4, 2, 4, 2, 16), False),
    ],
)
def test_a_reshape_is_told_from_the_transpose_that_it_stands_for(before, after, turned):
    assert is_turned(before, after) is turned


def test_modules_that_are_shared_on_purpose_are_left_alone():
    """Heads of one object in a list read one layer each; a tied table stands at two places."""

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            head = nn.Linear(WIDTH, 3)
            self.layers, self.heads = nn.ModuleList(Layer() for _ in range(2)), nn.ModuleList([head] * 2)

        def forward(self, x):
            made = []
            for layer, head in zip(self.layers, self.heads, strict=True):
                x = layer(x)
                made.append(head(x))
            return torch.cat(made, -1)

    torch.manual_seed(0)
    assert "lost_modules" not in answered(Heads(), SIGNAL)


def test_a_layer_that_is_left_out_is_told():
    torch.manual_seed(0)
    assert "are never run" in answered(Stack("range"), SIGNAL)["no_gradient"].title
    assert "no_gradient" not in answered(Stack(), SIGNAL)


def test_a_part_that_drowns_beside_another_is_told():
    class Joined(nn.Module):
        def __init__(self, factor, added):
            super().__init__()
            self.image, self.text, self.factor, self.added = nn.Linear(16, 16), nn.Linear(16, 16), factor, added
            self.out = nn.Linear(16 if added else 32, 4)

        def forward(self, x):
            image, text = self.image(x), self.factor * self.text(x)
            return self.out(image + text[:, :1] if self.added else torch.cat([image, text], -1))

    torch.manual_seed(0)
    for added in (True, False):
        assert "text drowns" in answered(Joined(1e-3, added), X)["drowned_part"].cause
        assert "drowned_part" not in answered(Joined(0.1, added), X)


def test_an_activation_that_does_nothing_is_told():
    torch.manual_seed(0)
    found = answered(nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(1.0), nn.Linear(32, 4)), X)
    assert "gives back what it reads" in found["mixed_axes"].title
    assert "mixed_axes" not in answered(nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 4)), X)


def test_a_smooth_activation_of_tiny_numbers_is_not_called_linear():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    assert "mixed_axes" not in answered(model, 1e-6 * X)


def test_a_divisor_of_both_signs_is_told():
    torch.manual_seed(0)
    assert "both signs" in answered(Made(lambda h, e: h / h.sum(-1, keepdim=True)), X)["signed_divisor"].title
    assert "signed_divisor" not in answered(Made(lambda h, e: h / h.square().sum(-1, keepdim=True)), X)


def test_a_frozen_last_layer_behind_trained_ones_is_told():
    def frozen(*places):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
        for place in places:
            model[place].requires_grad_(False)
        return answered(model, X)

    assert "4.weight" in frozen(4)["frozen_readout"].title
    assert "frozen_readout" not in frozen(0, 2)
    assert "frozen_readout" not in frozen(2, 4)
    model = nn.Sequential(Made(lambda h, e: h + e * h, 0.0), nn.Linear(16, 4))
    model[0].extra.requires_grad_(False)
    assert "0.extra is zero and frozen" in answered(model, X)["frozen_readout"].title


def test_a_factor_at_the_branch_is_told_and_deepnorms_is_not():
    class Deep(nn.Module):
        def __init__(self, skip, branch):
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4))
            self.layers = nn.ModuleList(
                nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH)) for _ in range(4)
            )
            self.skip, self.branch = skip, branch

        def forward(self, x):
            for norm, layer in zip(self.norms, self.layers, strict=True):
                x = norm(self.skip * x + self.branch * layer(x))
            return x

    torch.manual_seed(0)
    assert "the branch by 1.7" in answered(Deep(1.0, 1.7), SIGNAL)["branch_factor"].title
    assert "multiplied by 0.03" in answered(Deep(0.03, 1.0), SIGNAL)["branch_factor"].title
    for factors in ((1.7, 1.0), (1.0, 0.2), (1.0, 1.0)):
        assert "branch_factor" not in answered(Deep(*factors), SIGNAL)


def test_a_std_that_was_given_as_the_mean_is_told_with_its_line():
    def normal(**arguments):
        torch.manual_seed(0)
        model = Stack()
        for weight in model.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, **arguments)
        return answered(model, SIGNAL)

    assert "mean 0.1" in normal(mean=0.1)["nonzero_mean"].title
    assert "nonzero_mean" not in normal(std=0.1)
    assert "nonzero_mean" not in normal(std=1.0)


def given(wrong):
    """A loss of what a small network makes, and of what is wrong with it."""

    def forward(h, e):
        made, target = h[:, :4], X[:, :4]
        if wrong == "range":
            return F.mse_loss(made.tanh(), 3 * target)
        if wrong == "moving":
            return F.mse_loss(made, 0.9 * h[:, 4:8].relu() + target)
        if wrong == "alike":
            return F.mse_loss(made, h[:, 4:8])
        if wrong == "kl":
            return F.kl_div(made.softmax(-1), target.softmax(-1), reduction="batchmean")
        labels = torch.arange(len(h)) % 4
        return -F.cross_entropy(made, labels) if wrong == "sign" else F.cross_entropy(made, labels)

    return Made(forward)


@pytest.mark.parametrize(
    ("wrong", "title"),
    [
        ("range", "beyond what the tanh before it can make"),
        ("moving", "the targets of `mse_loss` in (model) have a gradient"),
        ("kl", "`kl_div` in (model) takes logarithms"),
        ("sign", "the negative of the cross entropy"),
        ("alike", ""),
        ("", ""),
    ],
)
def test_what_a_loss_does_not_take_is_told(wrong, title):
    torch.manual_seed(0)
    found = answered(given(wrong), X)
    assert ("loss_inputs" in found) == bool(title)
    assert not title or title in found["loss_inputs"].title


class Padded(nn.Module):
    """One attention over ids, read as an average."""

    def __init__(self, wrong: str = ""):
        super().__init__()
        self.emb, self.places, self.qkv = nn.Embedding(32, WIDTH), nn.Embedding(12, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out, self.wrong = nn.Linear(WIDTH, 4), wrong

    def forward(self, ids, attention_mask):
        places = torch.arange(ids.shape[1]) * (self.wrong != "places")
        x = self.emb(ids) + self.places(places)
        query, key, value = self.qkv(x).chunk(3, -1)
        mask = None if self.wrong == "mask" else attention_mask[:, None].bool()
        if self.wrong == "heads":
            heads = (part.unflatten(-1, (2, -1)) for part in (query, key, value))
            return self.out(x + F.scaled_dot_product_attention(*heads).flatten(2))
        return self.out(x + F.scaled_dot_product_attention(query, key, value, mask))


def test_masks_that_hide_nothing_and_positions_that_make_no_difference_are_told():
    def told(wrong, mask):
        torch.manual_seed(0)
        return answered(Padded(wrong), {"ids": IDS, "attention_mask": mask})

    mask = torch.ones_like(IDS)
    mask[0, 8:] = mask[1, 5:] = 0
    assert "attention_mask hides change" in told("mask", mask)["wrong_influence"].title
    assert "wrong_influence" not in told("", mask)
    torch.manual_seed(0)
    without = answered(Everywhere("places"), IDS)
    assert "positions make no difference" in without["no_influence"].title
    assert "over heads" in answered(Everywhere("heads"), IDS)["no_influence"].cause
    assert "no_influence" not in answered(Everywhere(), IDS)
    waiting = Everywhere("places")
    nn.init.zeros_(waiting.places.weight)
    assert "no_influence" not in answered(waiting, IDS)


class Everywhere(Padded):
    """The same where nothing is hidden."""

    def forward(self, ids):
        return super().forward(ids, torch.ones_like(ids))


def test_examples_that_mix_before_two_signals_meet_are_told():
    class Pairs(nn.Module):
        def __init__(self, axis):
            super().__init__()
            self.image, self.text, self.axis = nn.Linear(16, 8), nn.Linear(16, 8), axis

        def forward(self, x):
            first, second = (F.normalize(tower(x), dim=self.axis) for tower in (self.image, self.text))
            return F.cross_entropy(10 * first @ second.T, torch.arange(len(x)))

    torch.manual_seed(0)
    assert "axis of the batch" in answered(Pairs(0), X)["wrong_influence"].cause
    assert "wrong_influence" not in answered(Pairs(-1), X)


@pytest.mark.parametrize(
    ("offset", "told"), [(0, "at its own place"), (2, "by two places"), (-1, "one place late"), (1, "")]
)
def test_labels_at_another_place_than_the_next_are_told(offset, told):
    batch = {"ids": IDS[:, 1:-2], "targets": IDS[:, 1 + offset : IDS.shape[1] - 2 + offset]}
    torch.manual_seed(0)
    found = answered(Masked(torch.tril), batch)
    assert ("wrong_influence" in found) == bool(told)
    assert not told or told in found["wrong_influence"].title
