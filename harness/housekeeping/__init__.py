"""Recorded sweeps as files: listed, renamed, merged, archived and removed.

Records themselves are never changed: they are sealed, and say under which name they were measured.
A sweep that a process or a Slurm job is working on is refused.
"""
