"""Lets `python -m tests.campaign` run a campaign."""

from tests.campaign.main import main

main()
