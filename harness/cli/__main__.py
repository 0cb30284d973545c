"""Runs the command line as `python -m harness.cli`.

For an interpreter whose scripts are not on the PATH.
"""

from harness.cli.start import main

main()
