"""What an answer is: numbers, what they were computed with, a sentence; kept, saved and read back as one thing."""

from gradstats.answers.answer import Answer

__all__ = ["Answer"]
