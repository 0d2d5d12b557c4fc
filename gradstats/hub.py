"""Whether the Hugging Face hub can be reached, asked once instead of retried for most of a minute."""

from __future__ import annotations

from huggingface_hub import constants, get_session, try_to_load_from_cache

_SECONDS = 10


def hub_problem(repo_id: str, file_name: str, repo_type: str = "model") -> str | None:
    """Why a repository's files cannot be had, or None when they are cached or the hub answers.

    The hub's own client retries an unreachable host five times for each file before it says so.

    Args:
        repo_id: the repository.
        file_name: a file that it must hold; where this is cached, the hub is not asked.
        repo_type: "model" or "dataset".
    """
    if isinstance(try_to_load_from_cache(repo_id, file_name, repo_type=repo_type), str):
        return None
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set and the files are not cached"
    try:
        get_session().head(constants.ENDPOINT, timeout=_SECONDS)
    except Exception as error:  # each version of the client has its own exceptions
        return f"the hub does not answer ({type(error).__name__}: {error})"
    return None
