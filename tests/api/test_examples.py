"""The examples in the docstrings of the Python interface."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from types import ModuleType

import pytest

from harness.sweep.sweep import Sweep

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
EXAMPLES = {"comparing": 1, "data": 4, "planning": 1, "running": 1}  # docstrings with any


def documented(module: ModuleType) -> Iterator[doctest.DocTest]:
    """Yield the examples of a module by their docstrings.

    Before Python 3.13, doctest itself passes over cached properties.
    """
    tests = doctest.DocTestFinder().find(module)
    found = {test.name for test in tests}
    parser = doctest.DocTestParser()
    for _, kind in inspect.getmembers(module, inspect.isclass):
        for name, member in vars(kind).items():
            if kind.__module__ == module.__name__ and isinstance(member, cached_property):
                full_name = f"{module.__name__}.{kind.__name__}.{name}"
                if full_name not in found:
                    tests.append(parser.get_doctest(member.__doc__ or "", {}, full_name, None, 0))
    yield from (test for test in tests if test.examples)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_print_what_they_say(name: str, demo: Sweep) -> None:
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    tests = list(documented(import_module(f"harness.api.{name}")))
    assert len(tests) == EXAMPLES[name]
    for test in tests:
        runner.run(test)
    assert runner.failures == 0
