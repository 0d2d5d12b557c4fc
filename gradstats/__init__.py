"""gradstats: measure the variance of policy gradients of reasoning language models."""

import lazy_loader

# The public names are listed in __init__.pyi. Nothing is imported before it is used: `import gradstats` needs neither
# torch nor matplotlib, and the command line answers --help immediately.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
