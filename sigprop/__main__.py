"""`python -m sigprop`."""

from sigprop.cli import main

main()
