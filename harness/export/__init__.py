"""Exports trained models, proves that the files compute the same, and measures how fast they answer."""
