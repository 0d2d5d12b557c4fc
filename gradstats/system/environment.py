"""What a run depends on from outside: versions, hardware, the commit, and the Hugging Face hub."""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path


def version_of(package: str) -> str:
    """Return the installed version of a package; of this one in a tree that is not installed, that of the tree."""
    try:
        return version(package)
    except PackageNotFoundError:
        tree = Path(__file__).parents[2] / "pyproject.toml"
        if package != "gradstats" or not tree.is_file():
            raise
        return f"{tomllib.loads(tree.read_text())['project']['version']}+not.installed"


#: The version of this package.
__version__ = version_of("gradstats")

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
    return {name: version_of(name) for name in _PACKAGES}


def installed(package: str) -> str | None:
    """Return the installed version of a package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def gpus_of_worker(number: int, each: int, n_gpus: int) -> str | None:
    """Return the CUDA_VISIBLE_DEVICES of a worker with so many GPUs, by its number from 0; None without any GPU."""
    if not n_gpus:
        return None
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = shown.split(",") if shown else [str(gpu) for gpu in range(n_gpus)]
    return ",".join(visible[number * each : (number + 1) * each])


#: Extra → what it adds for users; those for developers are not among them.
EXTRAS = {
    "hub": "data sets of the hub",
    "tasks": "reasoning-gym's tasks",
    "gguf": "GGUF weights",
    "peft": "adapters",
    "vllm": "sampling with vLLM",
    "openai": "sampling from a server",
    "ray": "workers on many GPUs",
    "trl": "training with TRL",
    "verl": "training with verl",
    "tracking": "trackio",
}


def missing_extras() -> dict[str, list[str]]:
    """Return the extras that are not installed, each with the packages that it lacks."""
    lacking: dict[str, list[str]] = {}
    for requirement in (requires("gradstats") or []) if installed("gradstats") else []:
        found = re.fullmatch(r"([\w.-]+).*extra == .(\w+).", requirement)
        if found and found[2] in EXTRAS and installed(found[1]) is None:
            lacking.setdefault(found[2], []).append(found[1])
    return lacking


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


_SECONDS = 10
_COMMIT = re.compile(r"[0-9a-f]{40}")


def hub_problem(repo_id: str, file_name: str, repo_type: str = "model", revision: str | None = None) -> str | None:
    """Return why a repository's files are not available, or None when they are cached or the hub answers.

    The hub is asked once; its client would retry an unreachable host five times for each file.
    """
    from huggingface_hub import constants, get_session, try_to_load_from_cache  # takes half a second

    if isinstance(try_to_load_from_cache(repo_id, file_name, repo_type=repo_type, revision=revision), str):
        return None
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set and the files are not cached"
    try:
        get_session().head(constants.ENDPOINT, timeout=_SECONDS)
    except Exception as error:  # they differ between versions of the client
        return f"the hub does not answer ({type(error).__name__}: {error})"
    return None


def commit_of(repo_id: str, file_name: str, repo_type: str = "model", revision: str | None = None) -> str | None:
    """Return the current commit of a branch or tag of a repository; None where neither hub nor cache knows it."""
    from huggingface_hub import HfApi, constants, try_to_load_from_cache

    if revision is not None and _COMMIT.fullmatch(revision):
        return revision
    if not constants.HF_HUB_OFFLINE:
        try:
            return HfApi().repo_info(repo_id, repo_type=repo_type, revision=revision, timeout=_SECONDS).sha
        except Exception:
            pass
    cached = try_to_load_from_cache(repo_id, file_name, repo_type=repo_type, revision=revision)
    return Path(cached).parent.name if isinstance(cached, str) else None
