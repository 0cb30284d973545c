"""Measures what a step takes: time, memory, energy, memory traffic and what disturbs it."""
