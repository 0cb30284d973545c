"""Knows paths, errors, processes and downloads: what every other room may use."""
