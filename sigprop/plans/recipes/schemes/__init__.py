"""Schemes of the literature, those that share their shape in one file; `registry.RECIPES` imports them all."""
