"""The table of completions, its file, and readers of trainers' dumps."""

import lazy_loader

# The public names are listed in __init__.pyi, each with the file that defines it.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
