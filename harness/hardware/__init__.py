"""Knows what a machine can do: vendors' peaks, measured peaks, rooflines, and its false alarms."""
