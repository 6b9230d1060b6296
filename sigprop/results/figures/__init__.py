"""Figures of results, one file for each: profiles, plans, comparisons, reports, coordinate checks.

`panels.py` has what they share. Each function returns the figure, and saves it when a path is given.
"""
