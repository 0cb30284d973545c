"""What a machine can do, and how far the harness may be trusted on it."""
