"""sigprop: predict, measure, prescribe and check signal propagation at initialization."""

__version__ = "0.1.0"
