"""``python -m fedaf`` runs the command line."""

from fedaf.cli.main import main

main()
