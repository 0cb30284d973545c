"""Lets `python -m tests.programs.mutants` run the proof."""

from tests.programs.mutants.main import main

main()
