"""Versions, commit and hardware, on which results depend in addition to the settings."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: The installed version of this package.
__version__ = version("gradstats")

_PACKAGES = ("gradstats", "torch", "transformers", "numpy", "scipy", "pandas", "matplotlib")


def environment() -> dict[str, object]:
    """Return the versions and hardware, as a manifest records them."""
    return {
        "versions": dict(_versions()),
        "python": platform.python_version(),
        "git_commit": git_commit(),
        "hardware": hardware(),
    }


@functools.cache
def _versions() -> dict[str, str]:
    """Return the versions, which do not change while a process runs; reading them takes a twentieth of a second."""
    return {name: version(name) for name in _PACKAGES}


def installed(package: str) -> str | None:
    """Return the installed version of a package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_commit() -> str | None:
    """Return the commit of the source tree, with "-dirty" where it has changes; None outside git."""
    folder = Path(__file__).parents[1]

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(folder))
        return git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def hardware() -> dict[str, object]:
    """Return the machine, without its name."""
    return {"machine": platform.machine(), "system": platform.system(), "cpu_count": os.cpu_count()}
