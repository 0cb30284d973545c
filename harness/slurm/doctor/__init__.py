"""Examines a cluster before hours are spent on it."""
