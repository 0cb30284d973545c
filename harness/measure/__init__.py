"""Measures the costs of a step: time, memory, energy, memory traffic; and disturbances."""
