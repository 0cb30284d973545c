"""The cores of a process are those that it was started with."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, os
from harness.core.cores import usable_cores
import torch
torch.ones(2).sum()
from harness.records.environment import describe_hardware
bound = len(os.sched_getaffinity(0))
print(json.dumps([bound, len(usable_cores()), describe_hardware().usable_cores]))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is all that there is")
def test_threads_that_openmp_binds_change_no_name_of_the_hardware() -> None:
    environment = os.environ | {"OMP_PROC_BIND": "true", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    usable = len(os.sched_getaffinity(0))
    assert json.loads(ended.stdout) == [1, usable, usable]
