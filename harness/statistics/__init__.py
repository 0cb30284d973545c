"""Computes statistics as pure functions: they read no file and know no record."""
