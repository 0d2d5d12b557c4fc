"""What an experiment file may say: each option is declared here once, for Python, the command line and YAML."""
