"""All checks of a workload, in their order. To add one, add a row to one of the tables."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

from harness.preflight import data_checks, learning_checks, model_checks
from harness.preflight.advice import advise, describe
from harness.preflight.learning_checks import Rehearsal, parameter_norms
from harness.preflight.outcome import Outcome, problem
from harness.preflight.probe import Probe
from harness.preflight.report import CheckFinding, ParameterNorms, WorkloadReport
from harness.spec.axes import Axes
from harness.training.ranks import seed_everything
from workloads.base import Workload

Check = Callable[[Probe], Outcome]

# Without a batch or a loss, nothing that comes later can be checked.
REQUIRED: dict[str, Check] = {
    "indices": data_checks.check_indices,
    "finite samples": data_checks.check_finite_samples,
    "loss": model_checks.check_forward,
}
FURTHER: dict[str, Check] = {
    "labels": data_checks.check_labels,
    "repeatable": data_checks.check_repeatable,
    "split": data_checks.check_split,
    "layers": model_checks.check_registered,
    "device": model_checks.check_devices,
    "layout": model_checks.check_layout,
    "independence": model_checks.check_independence,
    "evaluation": model_checks.check_evaluation,
    "metrics": model_checks.check_metrics,
    "training mode": model_checks.check_mode,
    "logits": learning_checks.check_softmax,
    "start": learning_checks.check_start,
    "mean loss": learning_checks.check_mean,
    "gradients": learning_checks.check_gradients,
    "optimizer": learning_checks.check_optimizer,
}
# These look at a model that learns one batch by heart.
REHEARSED: dict[str, Callable[[Probe, Rehearsal], Outcome]] = {
    "one batch": learning_checks.check_one_batch,
    "reach": learning_checks.check_reach,
    "direction": learning_checks.check_direction,
}


def examine(
    label: str, workload: Workload, axes: Axes, seed: int, device: torch.device
) -> WorkloadReport:
    """Run all checks on a workload.

    An exception in one check is a problem of the workload, named by its message, and ends no other
    check. Only after a problem with the loss itself is nothing else checked.
    """
    started = time.monotonic()
    seed_everything(seed)
    probe = Probe(workload=workload, splits=workload.splits(), axes=axes, device=device, seed=seed)
    findings: list[CheckFinding] = []
    for name, check in REQUIRED.items():
        finding = _run(name, partial(check, probe))
        # Samples that can't be read fail all of these in the same way, which is said once.
        if all(finding.measured != earlier.measured for earlier in findings):
            findings.append(finding)
    norms: list[ParameterNorms] = []
    if findings[-1].status == "passed":
        findings += [_run(name, partial(check, probe)) for name, check in FURTHER.items()]
        findings += _rehearse(probe)
        norms = parameter_norms(probe)
    return WorkloadReport(
        label=label,
        seed=seed,
        device=str(device),
        seconds=time.monotonic() - started,
        findings=findings,
        norms=norms,
    )


def _run(name: str, check: Callable[[], Outcome]) -> CheckFinding:
    """Run one check."""
    try:
        return check().finding(name)
    except Exception as error:  # of the user's code, which is what is examined
        return problem(describe(error), advise(error)).finding(name)


def _rehearse(probe: Probe) -> list[CheckFinding]:
    """Have a model learn one batch, and run the checks that look at it."""
    try:
        rehearsal = Rehearsal(probe=probe)
    except Exception as error:
        return [problem(describe(error), advise(error)).finding("one batch")]
    return [_run(name, partial(check, probe, rehearsal)) for name, check in REHEARSED.items()]
