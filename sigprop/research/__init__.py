"""For readers of the papers: criticality, phase diagrams, kernels of infinite width, the lab, the explorer.

Research imports the core, never the other way; the command line reaches it by `sigprop research`.
"""
