"""Phase diagrams: predicted, measured, as a figure."""
