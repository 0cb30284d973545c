"""Decides whether a change may go in.

Two ways lead to that decision. `limits` and `answer` hold recorded trials against baselines that
are committed with the code; the pytest plugin shows what they say. All other modules measure two
revisions of a repository freshly against each other:

* `arms` starts the ranks of both trees and lets them train in turn, `turn_worker` is such a rank,
  and `protocol` is what the two agree on,
* `contention` reads how much of a turn other programs took,
* `paired` measures pairs of arms until the ratio of their throughputs is certain,
* `against` does so for every cell of a sweep (`harness gate`), whose changes `sweep_changes` names
  and whose learning `accuracy` compares, and `certify` for equal code (`harness gate certify`),
* `bisect` searches the commits of a history (`harness gate bisect`), which `history` reads, `judge`
  judges and `classify` measures against both ends.
"""
