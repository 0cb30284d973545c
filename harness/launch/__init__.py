"""Starts the ranks of trials on this machine and turns what they leave into records.

* `sweep` runs what is pending of a sweep, `runner` runs its trials, `assemble` makes their records.
* `launcher` is what all launchers have in common. `torchrun` starts ranks on this machine: through
  torchrun itself (`agent`), or forked (`forkserver`) from a process that has torch loaded
  (`forkserver`, which runs `forkserver_process`). `srun` starts them as the tasks of a Slurm step.
* `probe` measures what this machine can do.
"""
