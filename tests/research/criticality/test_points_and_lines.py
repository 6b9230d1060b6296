"""Critical points, lines and exponents against closed forms and an independent high-order quadrature."""

import math

import mpmath
import numpy as np
import pytest
import torch

from sigprop.errors import InputError, UnknownNameError
from sigprop.research.criticality import architecture, critical_line, criticality
from sigprop.research.criticality.networks import all_roots


def close(got, want, digits=6):
    assert got == pytest.approx(want, rel=10**-digits, abs=10 ** -(digits + 3))


# --- closed forms -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.0, 0.5, 0.9])
def test_relu(mu):
    (point,) = criticality(architecture("relu", residual=mu)).points
    close(point.sigma_w, math.sqrt(2 * (1 - mu**2)), 12)
    assert point.sigma_b == 0
    assert point.exponent == 0
    assert "neutral" in point.stability
    line = critical_line(architecture("relu", residual=mu))
    torch.testing.assert_close(line.sigma_w, torch.full_like(line.sigma_w, math.sqrt(2 * (1 - mu**2))))
    assert not line.stable.any()


@pytest.mark.parametrize("mu", [0.0, 0.5, 0.9])
def test_erf(mu):
    network = architecture("erf", residual=mu)
    (point,) = criticality(network).points
    close(point.sigma_w, math.sqrt(math.pi * (1 - mu**2) / 4), 12)
    assert (point.sigma_b, point.kernel, point.stability) == (0.0, 0.0, "attracts")
    close(point.exponent, 1.0, 8)
    line = critical_line(network)
    m, w = 1 - mu**2, line.sigma_w**2
    x = 16 * w**2 - math.pi**2 * m**2
    want = x / (4 * math.pi**2 * m) - 2 * w / math.pi * torch.asin(x / (16 * w**2 + math.pi**2 * m**2))
    middle = (line.kernel > 1e-3) & (line.kernel < 1e3)
    torch.testing.assert_close(line.sigma_b[middle] ** 2, want[middle], rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(network.jacobian(line.kernel, line.sigma_w, line.sigma_b), torch.ones_like(w))
    assert line.stable.all()


@pytest.mark.parametrize("mu", [0.0, 0.6])
def test_gelu(mu):
    network, scale = architecture("gelu", residual=mu), math.sqrt(1 - mu**2)
    origin, other = criticality(network).points
    close(origin.sigma_w, 2 * scale, 9)
    assert (origin.sigma_b, origin.stability, origin.exponent) == (0.0, "repels", None)
    kernel = (3 + math.sqrt(17)) / 2
    close(other.kernel, kernel, 9)
    bracket = 1 + 2 * kernel * (3 + 5 * kernel) / (math.pi * (1 + kernel) * (1 + 2 * kernel) ** 1.5)
    bracket += 2 / math.pi * math.asin(kernel / (1 + kernel))
    close(other.sigma_w, scale * 2 / math.sqrt(bracket), 9)
    close(other.sigma_b, other.sigma_w * kernel / (math.sqrt(2 * math.pi) * (1 + 2 * kernel) ** 0.75), 9)
    assert "larger kernels" in other.stability
    close(other.exponent, -64.98, 4)


def test_gelu_line():
    line = critical_line(architecture("gelu", residual=0.6))
    k = line.kernel
    bracket = 1 + 2 * k * (3 + 5 * k) / (math.pi * (1 + k) * (1 + 2 * k) ** 1.5) + 2 / math.pi * torch.asin(k / (1 + k))
    sigma_w = 0.8 * 2 / torch.sqrt(bracket)
    torch.testing.assert_close(line.sigma_w, sigma_w, rtol=1e-9, atol=0)
    want = sigma_w * k / (math.sqrt(2 * math.pi) * (1 + 2 * k) ** 0.75)
    middle = k > 1e-3
    torch.testing.assert_close(line.sigma_b[middle], want[middle], rtol=1e-8, atol=0)
    assert (line.stable == (k > (3 + math.sqrt(17)) / 2)).all()


def test_gelu_approaches_its_half_stable_point_as_stated():
    """Iterating from above, K - K* ~ 6962 / l and J ~ l^65 only at l far beyond any depth: check the rates at K*."""
    network = architecture("gelu")
    point = criticality(network).points[1]
    offset = torch.tensor([1e-3], dtype=torch.float64)
    step = network.step(point.kernel + offset, point.sigma_w, point.sigma_b) - point.kernel - offset
    close((step / offset**2).item(), -1 / 6962, 3)
    below = network.step(point.kernel - offset, point.sigma_w, point.sigma_b) - point.kernel + offset
    assert below < 0


def test_exponent_by_iteration():
    network = architecture("erf")
    sigma_w = math.sqrt(math.pi / 4)
    kernel, log_jacobian, seen = torch.tensor(1.0, dtype=torch.float64), 0.0, {}
    for layer in range(1, 8001):
        log_jacobian += math.log(network.jacobian(kernel, sigma_w, 0.0).item())
        kernel = network.step(kernel, sigma_w, 0.0)
        seen[layer] = (kernel.item(), log_jacobian)
    assert seen[8000][0] * 8000 == pytest.approx(0.5, rel=2e-3)
    slope = (seen[8000][1] - seen[4000][1]) / math.log(2)
    assert slope == pytest.approx(-1.0, rel=2e-3)


@pytest.mark.parametrize(
    ("activation", "ray"),
    [
        ("relu", 0.0),
        ("erf", math.sqrt(2 / math.pi * (2 / math.sqrt(5) - math.asin(2 / 3)))),
        ("gelu", (6 * math.sqrt(3) * math.pi) ** -0.5),
    ],
)
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_preactivation_norm_rays(activation, ray, mu):
    network = architecture(activation, norm="preactivation", residual=mu)
    close(network.ray(), ray, 10)
    sigma_w = torch.tensor([0.5, 2.0], dtype=torch.float64)
    on = network.jacobian(network.fixed_point(sigma_w, ray * sigma_w), sigma_w, ray * sigma_w)
    torch.testing.assert_close(on, torch.ones_like(on))
    off = network.jacobian(network.fixed_point(1.0, 2.0), 1.0, 2.0)
    slope, square = (network.slope_square(torch.ones(())).item(), network.square(torch.ones(())).item())
    close(off.item(), (1 - mu**2) * slope / (square + 4.0) + mu**2, 10)


def test_activation_norm_relu_line():
    line = critical_line(architecture("relu", norm="activation"))
    torch.testing.assert_close(line.sigma_b / line.sigma_w, torch.full_like(line.sigma_w, (math.pi - 1) ** -0.5))
    assert line.stable.all()


# --- no closed form: an independent high-order quadrature ----------------------------------------------------

FUNCTIONS = {
    "tanh": (mpmath.tanh, lambda x: mpmath.sech(x) ** 2),
    "silu": (lambda x: x / (1 + mpmath.exp(-x)), None),
    "mish": (lambda x: x * mpmath.tanh(mpmath.log1p(mpmath.exp(x))), None),
    "selu": (
        lambda x: 1.0507009873554804934193349852946 * (x if x > 0 else 1.6732632423543772848 * mpmath.expm1(x)),
        lambda x: 1.0507009873554804934193349852946 * (1 if x > 0 else 1.6732632423543772848 * mpmath.exp(x)),
    ),
}


def _expect(function, kernel):
    s = mpmath.sqrt(kernel)
    density = lambda z: mpmath.exp(-z * z / 2) / mpmath.sqrt(2 * mpmath.pi)  # noqa: E731
    return mpmath.quad(lambda z: function(s * z) * density(z), [-14, -6, -2, -0.5, 0, 0.5, 2, 6, 14])


def _moments(name, kernel):
    """E phi^2, its derivative in K by the score of the density, and E phi'^2."""
    f, slope = FUNCTIONS[name]
    slope = slope or (lambda x: mpmath.diff(f, x))
    square = _expect(lambda x: f(x) ** 2, kernel)
    rate = _expect(lambda x: f(x) ** 2 * (x * x / kernel - 1), kernel) / (2 * kernel)
    return square, rate, _expect(lambda x: slope(x) ** 2, kernel)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_critical_points_without_closed_form(name):
    for point in criticality(architecture(name)).points:
        if point.kernel == 0:
            slopes = {"tanh": 1.0, "silu": 0.5, "mish": 0.6}
            want = slopes[name] if name in slopes else 1.0507009873554805 * math.sqrt((1 + 1.6732632423543772**2) / 2)
            close(point.sigma_w, 1 / want)
            assert point.sigma_b == 0
            continue
        square, rate, slope_square = _moments(name, mpmath.mpf(point.kernel))
        close(float(rate / slope_square), 1.0, 8)
        close(point.sigma_w, float(1 / mpmath.sqrt(slope_square)))
        close(point.sigma_b, float(mpmath.sqrt(point.kernel - square / slope_square)))


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_lines_without_closed_form(name):
    network = architecture(name)
    square, _, slope_square = _moments(name, mpmath.mpf(2))
    weight, bias = network.critical_at(torch.tensor(2.0, dtype=torch.float64))
    close(weight.item(), float(1 / slope_square), 8)
    close(bias.item(), float(2 - square / slope_square), 8)
    square, _, slope_square = _moments(name, mpmath.mpf(1))
    close(architecture(name, norm="preactivation").ray(), float(mpmath.sqrt(slope_square - square)), 8)


@pytest.mark.parametrize("name", ["selu", "elu"])
def test_exponent_with_a_kink(name):
    """A kink at zero makes K' - K ~ K^(3/2): iterate, K ~ l^-2 and J ~ l^-2."""
    network = architecture(name)
    (point,) = criticality(network).points
    close(point.exponent, 2.0, 6)
    kernel, log_jacobian, seen = torch.tensor(1e-3, dtype=torch.float64), 0.0, {}
    for layer in range(1, 2401):
        log_jacobian += math.log(network.jacobian(kernel, point.sigma_w, 0.0).item())
        kernel = network.step(kernel, point.sigma_w, 0.0)
        seen[layer] = log_jacobian
    # d log J / d log l -> -2 as l / (l + l0): remove the shift by comparing three octaves
    slopes = [(seen[2 * a] - seen[a]) / math.log(2) for a in (300, 600, 1200)]
    assert abs(slopes[2] + 2) < abs(slopes[1] + 2) < abs(slopes[0] + 2) < 0.6


# --- robustness ----------------------------------------------------------------------------------------------


def test_no_line_and_no_point():
    result = criticality(architecture("softplus"))
    assert result.points == []
    assert result.line == []
    assert any("no critical line" in note for note in result.notes)
    assert any("no critical point" in note for note in result.notes)
    assert architecture("softplus", norm="preactivation").ray() is None


def test_line_that_leaves_the_quadrant():
    """The sigmoid's line exists only where sigma_b^2 >= 0: for large sigma_w."""
    line = critical_line(architecture("sigmoid"))
    alive = torch.isfinite(line.sigma_b)
    assert alive.any()
    assert not alive.all()
    assert line.sigma_w[alive].min() > 4


def test_full_residual_is_critical_everywhere_with_a_norm_only():
    for norm in ("preactivation", "activation", "batch"):
        network = architecture("gelu", norm=norm, residual=1.0)
        assert criticality(network).everywhere
        assert critical_line(network) is None
        factor = network.jacobian(network.fixed_point(1.3, 0.4), 1.3, 0.4).item()
        assert factor == pytest.approx(1.0, abs=1e-5)
    assert not criticality(architecture("gelu", residual=1.0)).everywhere


def test_all_roots_finds_crossings_and_touches():
    roots = all_roots(lambda k: (k - 2) * (k - 5) / (1 + k) ** 2)
    assert roots == pytest.approx([2.0, 5.0], rel=1e-10)
    assert all_roots(lambda k: ((k - 3) / (k + 3)) ** 2) == pytest.approx([3.0], rel=1e-4)
    assert all_roots(lambda k: 1 + 0 * k) == []
    assert all_roots(lambda k: 0 * k) == []


def test_user_activation_and_errors():
    network = architecture(lambda x: torch.tanh(x) * 1.0)
    (point,) = criticality(network).points
    close(point.sigma_w, 1.0)
    with pytest.raises(UnknownNameError, match="norm"):
        architecture("relu", norm="layer")
    with pytest.raises(InputError, match="residual"):
        architecture("relu", residual=1.5)
    with pytest.raises(InputError, match="elementwise"):
        architecture(lambda x: torch.softmax(x, -1))
    with pytest.raises(InputError, match="diverges"):
        criticality(architecture(lambda x: torch.exp(x * x)))
    assert np.isfinite(criticality(architecture("relu")).points[0].sigma_w)
