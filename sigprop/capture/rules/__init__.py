"""Rules: one file per family, each binding torch functions to ops by name. All are registered when this is imported."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
