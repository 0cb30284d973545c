"""Measuring: what a step takes."""
