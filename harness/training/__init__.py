"""The program of a rank: the one training loop, and the effects of the axes on it.

A rank's process starts in `worker`. `build` makes all that a trial trains with, as its axes say;
what the ranks share is decided by a strategy in `strategies`. `train` then cuts training into timed
segments of `step`s, and synchronizes the ranks between them. All that a trial has been through is in
its `state`, which `checkpoint` saves and restores.
"""
