"""Which failures a user can correct: the command line prints them as one sentence, without a traceback."""

# RuntimeError covers the self-check and torch's out-of-memory error, whose messages state the remedy.
EXPECTED = (ValueError, OSError, LookupError, ImportError, TypeError, RuntimeError)


def unexpected(error: Exception) -> str:
    """Return one sentence on an unexpected failure: a damaged file on which a library failed, or a bug."""
    if isinstance(error, MemoryError):
        return "memory ran out: use fewer or shorter sequences, or a machine with more memory"
    return (
        f"{type(error).__name__}: {error}: unexpected, a file may be damaged; GRADSTATS_TRACEBACK=1 prints where it "
        "happened, for a bug report"
    )
