"""How many inputs are generated: some in the ordinary suite, FUZZ_CASES of them in `make fuzz`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# The ordinary suite generates the same inputs in every run, so that a change is not blamed for an
# input that nobody has tried before. `make fuzz` generates new ones.
settings.register_profile(
    "suite",
    max_examples=50,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile(
    "fuzz",
    settings.get_profile("suite"),
    max_examples=int(os.environ.get("FUZZ_CASES", "10000")),
    derandomize=False,
    print_blob=True,
)
settings.load_profile("fuzz" if "FUZZ_CASES" in os.environ else "suite")
