"""What a trial leaves, and what its numbers come to."""
