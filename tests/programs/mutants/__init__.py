"""Proof that differences are found: planted defects are named, and equal runs are reported equal."""
