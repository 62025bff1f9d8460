"""The round loop: quorum, deadlines, checkpoints, events, and the run directory."""
