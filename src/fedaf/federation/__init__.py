"""The round loop and all it must survive: clients that fail, quorum, checkpoints, and the record of a run."""
