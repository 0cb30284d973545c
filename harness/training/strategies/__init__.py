"""The strategies: how the ranks of a trial train one model together, one module each.

`harness.spec.axes.STRATEGIES` lists them. To add a strategy, write a module with a class that
derives from `base.Strategy`, and enter it in that table: its name is then a value of the axis, and
trials that ask for it use the class.
"""

from __future__ import annotations

from importlib import import_module

from harness.spec.axes import STRATEGIES
from harness.training.strategies.base import Strategy


def strategy_class(name: str) -> type[Strategy]:
    """Return the class that implements the strategy `name`; imports the module of no other."""
    module_name, _, class_name = STRATEGIES[name].partition(":")
    implementation: type[Strategy] = getattr(import_module(module_name), class_name)
    return implementation
