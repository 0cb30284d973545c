"""Gates: whether a change may go in. By recorded trials and baselines, or measured fresh against
another revision.
"""
