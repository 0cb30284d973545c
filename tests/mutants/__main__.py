"""Lets `python -m tests.mutants` run the proof."""

from tests.mutants.main import main

main()
