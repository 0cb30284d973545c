"""Computes statistics as pure functions: they read no file and know no record.

- `interval`: the mean of independent values, and a probability, each with its interval.
- `trials`: the mean of a cell over its trials; seeds are the unit, not repeats.
- `estimate`: the difference between two sides, paired or not.
- `verdict`: whether differences are there and large enough to matter, over many questions.
- `sequential`: verdicts while measuring, which may be checked after every value.
- `attribution`: the effect of each axis of a sweep.
"""
