"""Whether completions were drawn from the distribution that is scored."""
