"""Sweeps as Slurm jobs: packed, submitted, led on their nodes, and looked after from outside."""
