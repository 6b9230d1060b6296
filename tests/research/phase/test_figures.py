"""Figures of phase diagrams and of curves over depth."""

from sigprop.research.phase.diagram import PhaseDiagram
from sigprop.research.phase.figure import Overlay, Panel, phase_figure
from studies.apjn_start import DepthCurve, curves_figure


def diagram():
    return PhaseDiagram(
        "sigma_w", [0.5, 1.0, 1.5], "residual", [0.0, 1.0], [[0.3, 1.0, 4.0], [0.0, 1e40, float("nan")]]
    )


def test_heat_maps_with_overlays_and_contours(tmp_path):
    panels = [
        Panel("one", diagram(), [Overlay([0.5, 1.0], [0.0, 1.0]), Overlay([1.0], [0.5], "star")], contour=diagram()),
        Panel("two", diagram(), [Overlay([0.5, 1.0], [0.0, 1.0], "dotted")]),
    ]
    path = phase_figure(panels, tmp_path / "deep" / "phase.png", columns=3)
    assert path.stat().st_size > 5000


def test_curves(tmp_path):
    curves = [
        DepthCurve("a", [1, 2, 3], [1.0, 2.0, 4.0], [0.1, 0.1, 0.1]),
        DepthCurve("b", [1, 2, 3], [1, 2, 3], predicted=True),
    ]
    assert curves_figure([("x", curves), ("y", curves[:1])], tmp_path / "c.png").stat().st_size > 5000


def test_a_diagram_says_what_it_shows_also_where_nothing_is_a_number():
    assert "2 points without a value" not in diagram().summary()
    assert "1 points without a value" in diagram().summary()
    assert "overflows at every point" in repr(PhaseDiagram("sigma_w", [9.0], "sigma_b", [0.0], [[float("nan")]]))
