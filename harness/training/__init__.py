"""What a rank runs: the one training loop and what the axes do to it."""
