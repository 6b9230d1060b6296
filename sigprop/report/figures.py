"""Figures of profiles by depth; they are drawn in `results.drawing`, where `Profile.plot` finds them."""

from sigprop.results.drawing import COLOURS, blocks, profile_figure

__all__ = ["COLOURS", "blocks", "profile_figure"]
