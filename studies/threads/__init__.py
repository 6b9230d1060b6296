"""Public threads with our problem, rebuilt small; `python -m studies.threads.judge` asks each and judges the answer."""

from studies.threads import cases
from studies.threads.case import THREADS, Thread

__all__ = ["THREADS", "Thread", "cases"]
