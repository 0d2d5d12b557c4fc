"""How many prompts a question takes, from a pilot."""
