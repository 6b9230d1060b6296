"""Models that are not transformers classes: other people's packages and constructs of every kind."""
