"""Computes statistics as pure functions: they read no file and know no record.

- `interval`: the mean of independent values with its interval; seeds are the unit, not repeats.
- `estimate`: the difference between two sides, paired or not.
- `verdict`: whether differences are there and large enough to matter, over many questions.
- `sequential`: verdicts while measuring, which may be checked after every value.
- `attribution`: the effect of each axis of a sweep.
"""
