"""Looks for mistakes in a workload before hours are spent on training it."""
