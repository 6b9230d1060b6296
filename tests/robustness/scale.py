"""How much to do: a short form in every run of the tests, the long one in `make stress`."""

import os

LONG = bool(os.environ.get("SIGPROP_STRESS"))


def cases(short: int, long: int) -> int:
    return long if LONG else short
