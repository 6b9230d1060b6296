"""Random networks made of ordinary parts, predicted and judged by fresh initializations."""
