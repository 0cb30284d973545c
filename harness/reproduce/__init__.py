"""Reproducing: which trials compute the same, and where two of them diverge."""
