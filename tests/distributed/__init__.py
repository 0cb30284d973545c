"""Real ranks through real torchrun."""
