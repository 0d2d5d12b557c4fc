"""The command line: ``gradstats COMMAND``."""
