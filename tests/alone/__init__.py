"""Tests that measure time, in a second stage of `make test`, with nothing beside.

Each of the two files has a process of its own: they sleep far more than they compute, so they hardly
disturb each other.
"""
