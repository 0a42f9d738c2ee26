"""How old events become current ones. Pure: no store, no I/O."""

from tailfold.upcasters.versions import Standing, stand

__all__ = ["Standing", "stand"]
