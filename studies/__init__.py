"""One file per table or figure; each is a command, `python -m studies.NAME`."""
