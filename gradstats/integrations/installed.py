"""Which of the trainers with an integration are installed, in which version."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

#: Package → the versions that its contract tests pass with, as pyproject.toml states them: from, and below.
KNOWN = {"trl": ((1, 16), (1, 17))}


def installed(package: str) -> str | None:
    """Return the installed version of a package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


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
    """Return the state of each integration in words, for ``gradstats env``."""
    states = {}
    for package in KNOWN:
        found = installed(package)
        if found is None:
            states[package] = f"not installed (extra {package})"
        else:
            states[package] = found if is_known(package, found) else f"{found}, not among {known_versions(package)}"
    return states
