"""``python -m fedaf`` is the command line."""

from fedaf.cli import main

main()
