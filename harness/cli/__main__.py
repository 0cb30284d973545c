"""Runs the command line as `python -m harness.cli`."""

from harness.cli.main import main

main()
