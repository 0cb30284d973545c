"""Launchers: what starts the ranks of a trial."""
