"""Tests against a real two-node Slurm on loopback, and what brings it up."""
