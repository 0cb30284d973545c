"""Knows what a machine can do: vendors' peaks, measured peaks, MFU, and its false alarms."""
