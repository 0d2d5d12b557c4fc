"""Compare engines with plain backward passes, before every run and on request."""
