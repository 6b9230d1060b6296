"""Laws of whole stacks: where correlations settle, how variance and gradient grow, what norms do to them."""
