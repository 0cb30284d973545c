"""Turns records into results: the cells of a sweep, comparisons, verdicts and attribution."""
