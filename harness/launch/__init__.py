"""Starts the ranks of trials on this machine and turns what they leave into records.

* `sweep` runs what is pending of a sweep, `runner` runs its trials, `assemble` makes their records.
* `launcher` is what all launchers have in common. `torchrun` starts ranks on this machine: through
  torchrun itself (`agent`), or forked (`forked`) from a process that has torch loaded
  (`forkserver`, which runs `forkserver_process`). `kept_forkserver` finds what an earlier command has
  loaded. `srun` starts them as the tasks of a Slurm step; where trials follow each other in a step,
  its tasks (`step_task`) fork them, which `warm_step` sees to.
* `probe` measures what this machine can do, and `selftest` whether the harness measures correctly.
"""
