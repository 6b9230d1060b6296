"""Plans: initializations, residual scalings and learning rates as data, made by recipes, width and depth rules."""
