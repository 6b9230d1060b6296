"""What is wrong with a run, said once: rules over the history; names are those of `check`."""
