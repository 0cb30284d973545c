"""Real ranks, forked or through real torchrun."""
