"""Measuring inside other people's training loops."""
