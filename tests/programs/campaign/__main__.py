"""Lets `python -m tests.programs.campaign` run a campaign."""

from tests.programs.campaign.main import main

main()
