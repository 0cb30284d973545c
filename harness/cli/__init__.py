"""Defines what a user types: the command line `harness`, and the options of the pytest plugin."""
