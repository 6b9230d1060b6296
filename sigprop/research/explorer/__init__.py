"""The explorer: one page on loopback where settings are changed and the prediction answers at once.

| | |
|---|---|
| `controls` | what can be set, for which architecture, within which bounds |
| `views` | from settings to curves, the phase diagram around them, a verdict, and the Python that makes them |
| `page` | the page, and the answers it asks for |
| `server` | who may ask: this machine, this page |
"""

from sigprop.research.explorer.server import Explorer

__all__ = ["Explorer"]
