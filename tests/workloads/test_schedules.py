from __future__ import annotations

import pytest
import torch

from workloads.schedules import one_cycle


def rates(steps: int, warmup: float) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = one_cycle(optimizer, steps, warmup)
    used = []
    for _ in range(steps):
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return used


def test_it_rises_to_the_peak_and_falls() -> None:
    used = rates(100, 0.2)
    assert used[:20] == pytest.approx([2 * (i + 1) / 20 for i in range(20)])
    assert used[20:] == sorted(used[20:], reverse=True)
    assert max(used) == pytest.approx(2.0)
    assert used[-1] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("steps", range(1, 25))
def test_any_number_of_steps_starts_with_one_that_learns(steps: int) -> None:
    assert rates(steps, 0.1)[0] > 0
