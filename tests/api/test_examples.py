"""The examples in the docstrings of the Python interface."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from functools import cached_property
from types import ModuleType

from harness import api
from harness.sweep.sweep import Sweep

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


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


def test_examples_print_what_they_say(demo: Sweep) -> None:
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    tests = list(documented(api))
    assert len(tests) == 7
    for test in tests:
        runner.run(test)
    assert runner.failures == 0
