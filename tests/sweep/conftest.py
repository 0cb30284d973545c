"""Loads torch once: users' workloads are imported in processes that are forked from the tests'."""

from __future__ import annotations

import torch  # noqa: F401
