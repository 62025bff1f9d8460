"""``python -m fedaf`` is the command line."""

from fedaf.cli.main import main

main()
