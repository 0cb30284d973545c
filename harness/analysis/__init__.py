"""Turns records into results: the cells of a sweep, comparisons, verdicts and attribution.

- `result`: what the trials of a cell come to, from records.
- `questions`, `compare`: what is asked of two cells, and the comparison of many.
- `rungs`: how alike two rows of numbers are, from the same bits down to other results.
- `distance`: the same for tensors, by figures that a trial has left of them.
- `convergence`: the steps until the target metric reaches a goal.
- `sweep_result`: all that is known of a sweep, the model that every renderer shows: verdicts, and what
  each axis contributes.
- `baseline`: results saved in files, for later runs to be compared with.
- `selection`: from names on the command line to results.
- `adaptive`: repeats until the results are precise enough.
- `stopping`, `cost`: how long trials with a rule for stopping trained, and what trials cost.
- `evidence`: what two trials have left that tells whether they computed the same.
- `trial_table`: all trials as a table.
- `cells`: small helpers over cells and records that load no SciPy.
"""
