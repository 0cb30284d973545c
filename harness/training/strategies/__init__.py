"""The strategies: how the ranks of a trial train one model together, one module each.

`harness.spec.axes.STRATEGIES` lists them. A new one needs its module and an entry in that table.
"""

from __future__ import annotations

from importlib import import_module

from harness.spec.axes import STRATEGIES
from harness.training.strategies.base import Strategy


def strategy_class(name: str) -> type[Strategy]:
    """Return the class that implements the strategy `name`; imports no module but its own."""
    module_name, _, class_name = STRATEGIES[name].partition(":")
    implementation: type[Strategy] = getattr(import_module(module_name), class_name)
    return implementation
