"""What is wrong with a run, said once: one file per finding, a rule over the history; names are those of `check`."""
