"""A run's saved numbers → figures, tables and a page."""

import lazy_loader

# A terminal's answer needs none of the files that draw.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
