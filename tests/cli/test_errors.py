"""Errors that no command foresees end in one sentence as well."""

from __future__ import annotations

from gradstats.cli.commands import unexpected


def test_the_kind_of_error_and_the_way_to_its_traceback_are_stated():
    assert unexpected(ZeroDivisionError("division by zero")).startswith("ZeroDivisionError: division by zero: ")
    assert "GRADSTATS_TRACEBACK=1" in unexpected(AttributeError("x"))
    assert unexpected(MemoryError()).startswith("memory ran out: use fewer or shorter sequences")
