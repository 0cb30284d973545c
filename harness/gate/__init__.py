"""Paired measurement of two revisions, and what CI makes of measurements.

- `harness gate` (`against`) measures every cell of a sweep in the working tree against another revision,
  `harness bisect` (`bisect`) searches the commits between two revisions, and `harness certify` (`certify`)
  measures code against itself. All of them train both sides in turn (`paired`), in ranks that are forked
  from one process (`pairs`, `arms`) and wait between their turns (`turn_worker`).
- The pytest plugin compares a run with a baseline: `limits` reads what matters, `answer` decides.
"""
