"""For readers of the papers: criticality, phase diagrams, kernels of infinite width, the lab, the explorer.

`compare_formula` shows a printed formula beside the corrected one and beside what real networks give. Research imports
the core, never the other way; the command line reaches it by `sigprop research`.
"""

from sigprop.research.printed import FormulaComparison, FormulaRow, compare_formula

__all__ = ["FormulaComparison", "FormulaRow", "compare_formula"]
