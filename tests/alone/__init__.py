"""Tests that measure time: each runs with no other test beside it."""
