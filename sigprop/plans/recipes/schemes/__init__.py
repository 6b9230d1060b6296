"""One scheme of the literature per file; `registry.recipes` imports them all."""
