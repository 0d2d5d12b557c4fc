"""Calls the command in the test process."""

import sys

from rich.console import Console

from gradstats.cli import commands


def run(monkeypatch, capsys, *words, width=200):
    """Call the command in this process; returns exit code, standard output and standard error.

    The terminal has ``width`` columns.
    """
    monkeypatch.setattr(sys, "argv", ["gradstats", *map(str, words)])
    monkeypatch.setattr("gradstats.cli.terminal.console", Console(width=width, highlight=False, soft_wrap=True))
    code = 0
    try:
        commands.main()
    except SystemExit as stop:
        code = stop.code or 0
    out, err = capsys.readouterr()
    return code, out, err
