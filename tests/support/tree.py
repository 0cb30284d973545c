"""Where the tree under test lies."""

from pathlib import Path

TOP = Path(__file__).parents[2]
