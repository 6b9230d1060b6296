"""Plans: initializations, residual scalings and learning rates as data, made by recipes and by width and depth rules."""
