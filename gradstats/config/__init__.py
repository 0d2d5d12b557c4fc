"""The settings of an experiment: each option is declared here once, for Python, the command line and YAML."""
