"""The price of computing, as a cluster profile states it: `price_per_hour: 2.49 USD`.

It is that of one rank: of its GPU, or on CPUs of its share of the machine. Clusters and clouds bill
GPUs one by one or by the node, and a node's price over its ranks makes trials of any size comparable,
whatever else runs next to them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TEXT = re.compile(r"(?P<amount>\d+(?:\.\d+)?) (?P<currency>[A-Z]{3})")


class Price(NamedTuple):
    """What one rank costs for an hour."""

    amount: float  # greater than 0
    currency: str  # its code in ISO 4217, as in USD


def parse_price(text: str) -> Price:
    """Return the price in a text such as `2.49 USD`; raises ValueError for one that has none."""
    match = TEXT.fullmatch(text)
    amount = 0.0 if match is None else float(match["amount"])
    if match is None or not amount:
        raise ValueError(
            f"found {text!r}; allowed: a number greater than 0 and the code of a currency, as in"
            " 2.49 USD"
        )
    return Price(amount, match["currency"])
