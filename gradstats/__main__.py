"""``python -m gradstats``, where the command ``gradstats`` is not on the path."""

from gradstats.cli.commands import main

if __name__ == "__main__":
    main()
