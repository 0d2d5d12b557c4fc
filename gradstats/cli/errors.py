"""Which failures are the user's to mend: the command line prints them as one sentence, without a traceback."""

# RuntimeError stands for the self-check and for torch's out-of-memory error, whose messages say what to do.
EXPECTED = (ValueError, OSError, LookupError, ImportError, TypeError, RuntimeError)
