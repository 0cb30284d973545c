"""Starts the ranks of trials on this machine and turns what they leave into records."""
