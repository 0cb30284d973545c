"""Results held against each other, and baselines to hold them against."""
