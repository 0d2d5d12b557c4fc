"""Which of the trainers with an integration are installed, in which version."""

from __future__ import annotations

from gradstats.system.environment import installed

#: Package → the versions that its contract tests pass with, as pyproject.toml states them: from, and below.
KNOWN = {"trl": ((1, 16), (1, 17)), "verl": ((0, 9), (0, 10))}


def known_versions(package: str) -> str:
    """Return the versions that an integration knows.

    >>> known_versions("trl")
    'trl>=1.16,<1.17'
    """
    low, below = (".".join(map(str, end)) for end in KNOWN[package])
    return f"{package}>={low},<{below}"


def is_known(package: str, found: str) -> bool:
    """Return whether an integration knows a version.

    >>> is_known("trl", "1.16.3"), is_known("trl", "1.17.0"), is_known("trl", "main")
    (True, False, False)
    """
    low, below = KNOWN[package]
    numbers = found.split(".")[:2]
    return all(map(str.isdigit, numbers)) and low <= tuple(map(int, numbers)) < below


def integrations() -> dict[str, str]:
    """Return the state of each integration in words, for ``gradstats check``."""
    states = {}
    for package in KNOWN:
        found = installed(package)
        if found is None:
            states[package] = f"not installed (extra {package})"
        else:
            states[package] = found if is_known(package, found) else f"{found}, not among {known_versions(package)}"
            if package == "verl":
                states[package] += f"; {registered_with_verl()}"
    return states


def registered_with_verl() -> str:
    """Say whether verl's registry has this package's estimators: verl does not report a plugin that fails."""
    import importlib

    try:
        registry = importlib.import_module("verl.trainer.ppo.core_algos").ADV_ESTIMATOR_REGISTRY
    except Exception as error:  # of any of the libraries that verl imports
        return f"verl cannot be imported ({type(error).__name__}: {error})"
    n_registered = sum(str(name).partition("/")[0] == "gradstats" for name in registry)
    if n_registered:
        return f"{n_registered} estimators are registered"
    try:
        importlib.import_module("gradstats.integrations.verl")
    except Exception as error:
        return f"no estimator is registered ({type(error).__name__}: {error})"
    return "no estimator was registered when verl was imported: see VERL_USE_EXTERNAL_PLUGINS"
