"""Rules that images need: norms over batches and groups, windows side by side and overlapping, strided pieces."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sigprop.capture import predict

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([1, 4])


def loss(out):
    return F.cross_entropy(out, LABELS)


def network(*middle, width=96, after=96):
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *middle, nn.Conv2d(width, after, 3, stride=2), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(after, 6))  # fmt: skip


def with_statistics(norm):
    """Running statistics and gains as of a trained model."""
    generator = torch.Generator().manual_seed(1)
    norm.running_mean.copy_(0.3 * torch.randn(norm.running_mean.shape, generator=generator))
    norm.running_var.copy_(0.5 + torch.rand(norm.running_var.shape, generator=generator))
    return norm


def test_batch_norm_with_fixed_statistics(agreement):
    predicted = agreement(lambda: network(with_statistics(nn.BatchNorm2d(96))), IMAGE, loss)
    assert "sampled" not in {row.status for row in predicted.sites}


def test_batch_norm_before_an_activation(agreement):
    """The gain's own gradient goes through the ReLU of the very entries it multiplies."""
    agreement(lambda: network(nn.BatchNorm2d(96), nn.ReLU()), IMAGE, loss)


def test_batch_norm_in_training(agreement):
    """The theory is that of a large batch; the bias before a norm over the batch has no gradient."""
    x = torch.randn(256, 192, generator=torch.Generator().manual_seed(0))
    make = lambda: nn.Sequential(  # noqa: E731
        nn.Linear(192, 128), nn.BatchNorm1d(128), nn.Tanh(), nn.Linear(128, 4)
    )
    labels = torch.randint(4, (256,), generator=torch.Generator().manual_seed(1))
    agreement(make, x, lambda out: F.cross_entropy(out, labels), training=True, skip=("0.bias",), width=30)


def test_group_norm_of_large_groups(agreement):
    agreement(lambda: network(nn.GroupNorm(2, 192), width=192), IMAGE, loss, skip=("0.bias",), width=30)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])
def test_group_norm_before_an_activation(agreement, activation):
    agreement(lambda: network(nn.GroupNorm(2, 192), activation(), width=192), IMAGE, loss, skip=("0.bias",), width=30)


class PostActivation(nn.Module):
    """A block that ends in the activation of the sum of its norm and the skip path."""

    def __init__(self):
        super().__init__()
        self.stem, self.conv, self.head = (
            nn.Conv2d(3, 96, 3, padding=1),
            nn.Conv2d(96, 96, 3, padding=1),
            nn.Linear(96, 6),
        )
        self.first, self.second = nn.BatchNorm2d(96), nn.BatchNorm2d(96)

    def forward(self, image):
        x = torch.relu(self.first(self.stem(image)))
        return self.head(torch.relu(x + self.second(self.conv(x))).mean((2, 3)))


def test_batch_norm_in_training_before_activations(agreement):
    """The gradient of a pooled loss is common to all pixels; the mask lets the norm see it along the signal."""
    images = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([1, 4, 0, 3, 2, 5])
    agreement(PostActivation, images, lambda out: F.cross_entropy(out, labels), training=True,
              skip=("stem.bias", "conv.bias"), width=30)  # fmt: skip


def test_pooling_that_keeps_the_shape(agreement):
    pool = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
    agreement(lambda: network(nn.ReLU(), pool), IMAGE, loss)


class Windows(nn.Module):
    """Features of windows by unfold; a transformation of each; folded back where they lie side by side."""

    def __init__(self, size, stride, padding=0):
        super().__init__()
        self.settings = {"kernel_size": size, "stride": stride, "padding": padding}
        self.stem, self.mix = nn.Conv2d(3, 96, 1), nn.Linear(96 * size * size, 64)
        self.inside, self.head = nn.Conv2d(96, 96, 1), nn.Linear(64, 6)

    def forward(self, image):
        x = self.stem(image)
        if self.settings["stride"] == self.settings["kernel_size"]:
            patches = F.unfold(x, **self.settings)
            x = F.fold(torch.relu(patches), x.shape[-2:], **self.settings)
            x = self.inside(x)
        windows = F.unfold(x, **self.settings).transpose(1, 2)
        return self.head(self.mix(windows).mean(1))


@pytest.mark.parametrize(("size", "stride", "padding"), [(2, 2, 0), (4, 4, 0), (3, 1, 1), (3, 2, 0)])
def test_windows(agreement, size, stride, padding):
    agreement(lambda: Windows(size, stride, padding), IMAGE, loss)


def test_overlapping_windows_are_not_folded():
    class Folded(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 18, 1)

        def forward(self, image):
            x = F.unfold(self.stem(image), 3)
            return F.fold(x, image.shape[-2:], 3)

    from sigprop.errors import UnsupportedError

    with pytest.raises(UnsupportedError, match="fold of overlapping windows"):
        predict(Folded(), IMAGE, loss="noise")


class Squeezed(nn.Module):
    """Squeeze and excitation of a map of one pixel, which pooling leaves as it is."""

    def __init__(self, width=64):
        super().__init__()
        self.first, self.pool = nn.Conv2d(3, width, 4), nn.AdaptiveAvgPool2d(1)
        self.gate, self.last = nn.Conv2d(width, width, 1), nn.Conv2d(width, 8, 1)

    def forward(self, x):
        x = self.first(x)
        return self.last(x * torch.sigmoid(self.gate(self.pool(x))))


def test_a_pool_of_one_pixel_has_a_gradient_of_its_own(agreement):
    """It was given that of the whole map, ten times as large."""
    agreement(Squeezed, torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)), seeds=64)


def test_a_transposed_convolution_of_the_raw_input_is_a_function_of_the_input(agreement):
    """It was taken for a function of its weights alone: the output was said not to depend on any parameter."""
    make = lambda: nn.Sequential(  # noqa: E731
        nn.ConvTranspose2d(3, 96, 4, 2, 1), nn.ReLU(), nn.Conv2d(96, 64, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 6),
    )  # fmt: skip
    agreement(make, IMAGE[..., :4, :4], loss)


def test_sound_that_is_normalized_before_it_is_filtered(agreement):
    """A filter over what a norm left as channels, and a pool of it: it was a fault."""
    sound = torch.randn(4, 1, 64, generator=torch.Generator().manual_seed(0))

    def make():
        after = [nn.MaxPool1d(3), nn.LayerNorm([96, 20]), nn.Flatten(), nn.Linear(1920, 6)]
        return nn.Sequential(nn.LayerNorm([1, 64]), nn.Conv1d(1, 96, 5), *after)

    agreement(make, sound, lambda out: F.cross_entropy(out, torch.arange(4)))


def test_gates_of_hard_sigmoids(agreement):
    """Autograd has no second derivative of torch's hardsigmoid: it was a fault."""

    class Excited(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Conv2d(3, 96, 3, padding=1), nn.Conv2d(96, 8, 3)
            self.gate = nn.Sequential(nn.Conv2d(96, 64, 1), nn.ReLU(), nn.Conv2d(64, 96, 1), nn.Hardsigmoid())

        def forward(self, x):
            x = torch.relu(self.first(x))
            return self.head(x * self.gate(x.mean((2, 3), keepdim=True)))

    agreement(Excited, IMAGE)


def test_an_image_of_one_channel_that_is_read_as_one_row(agreement):
    """Its positions are features: they were tokens, mixed alike in all of one channel, and nothing was known."""
    x = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(0))

    def make():
        layers = [nn.Conv2d(3, 96, 3, padding=1), nn.ReLU(), nn.Conv2d(96, 1, 1), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(36, 64), nn.ReLU(), nn.Linear(64, 4))

    found = agreement(make, x, lambda out: F.cross_entropy(out, torch.arange(8) % 4), seeds=64, skip=("2", "3", "4"))
    assert "assumed" not in {row.status for row in found.parameters}
