"""Makes the runs of every Python process small that has this folder on its path; see ``support/tiny_runs.py``."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from support.tiny_runs import install

install()
