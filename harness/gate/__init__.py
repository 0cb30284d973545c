"""Decides whether a change may go in.

Two ways lead to that decision. `limits` and `answer` compare recorded trials with baselines that
are committed with the code; the pytest plugin shows what they say. All other modules measure two
revisions of a repository against each other:

* `ranks` and `pairs` start the ranks of both trees, `arms` lets them train in turn, and
  `turn_worker` is such a rank,
* `paired` measures pairs of arms until the ratio of their throughputs is certain, and `explain` what the
  difference of their steps consists of (`harness explain`, whose answer `explanation` keeps),
* `against` does so for every cell of a sweep (`harness gate`), whose changes `sweep_changes` names
  and whose learning `accuracy` compares, `stacks` for two stacks, `certify` for equal code (`harness
  gate certify`) and `tax` for a cell with a setting and without it,
* `bisect` searches the commits of a history (`harness bisect`), which `history` reads and `judge`
  judges; `bisect_stacks` searches stacks.
"""
