"""Turns records into results: rows, the cells of a sweep, comparisons, verdicts and attribution.

- `result`: the facts and numbers of a trial, which every view of results takes, and those of a cell.
- `questions`, `compare`: what is asked of two cells, and the comparison of many.
- `sweep_result`: all that is known of a sweep, the model that every renderer shows: verdicts, what
  each axis contributes, and throughput against that on the fewest ranks.
- `rungs`, `parity`: how alike two runs are, from the same bits down to other results.
- `baseline`: results saved in files, for later runs to be compared with.
- `selection`: from names on the command line to results.
- `adaptive`: repeats until the results are precise enough.
- `cells`: small helpers over cells and records that load no SciPy.
"""
