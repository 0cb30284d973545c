"""What there is to know about Slurm: the keys of a profile, and what the cluster says of itself."""
