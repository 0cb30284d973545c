"""Knows what a machine can do: vendor peaks, measured peaks, rooflines, and how often equal code was told apart on it."""
