"""Which failures a user can correct: the command line prints them as one sentence, without a traceback."""

# RuntimeError stands for the self-check and for torch's out-of-memory error, whose messages state the remedy.
EXPECTED = (ValueError, OSError, LookupError, ImportError, TypeError, RuntimeError)
