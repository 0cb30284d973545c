"""Starts the ranks of trials on this machine and turns what they leave into records.

* `sweep` runs what is pending of a sweep, `runner` runs its trials, `attempts` says which run again.
* `launcher` is what all launchers have in common. `torchrun` starts ranks on this machine: through
  torchrun itself (`agent`), or forked (`forkserver`) from a process that has torch loaded
  (`forkserver_process`). `srun` starts them as the tasks of a Slurm step. `stack` is what they run from.
* `ranks` waits until they have ended and says why, `watch` whether they hang; `assemble` makes the record.
* `tasks` has ranks do something else than a trial. `hold` keeps a machine for one measurement at a time.
"""
