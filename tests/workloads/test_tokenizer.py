from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from workloads.tickets import tickets
from workloads.tokenizer import SPECIAL, encode, trained

TRAIN = """
import hashlib, sys
from workloads.tickets import tickets
from workloads.tokenizer import trained
texts = [text for text, _ in tickets(500, 0)]
print(hashlib.sha256(trained(texts, 600).to_str().encode()).hexdigest())
"""


def texts() -> list[str]:
    return [text for text, _ in tickets(500, 0)]


def test_every_process_learns_the_same_vocabulary(tmp_path: Path) -> None:
    digests = set()
    for seed, parallel in (("0", "false"), ("1", "true")):
        variables = {
            "PYTHONHASHSEED": seed,
            "TOKENIZERS_PARALLELISM": parallel,
            "XDG_CACHE_HOME": str(tmp_path / seed),
        }
        done = subprocess.run(
            [sys.executable, "-c", TRAIN],
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout)
    assert len(digests) == 1


def test_the_vocabulary() -> None:
    vocabulary = trained(texts(), 600).get_vocab()
    assert [vocabulary[token] for token in SPECIAL] == [0, 1, 2, 3, 4]
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    assert len(vocabulary) <= 600
    assert "invoice" in vocabulary


def test_texts_are_framed_and_cut() -> None:
    tokenizer = trained(texts(), 600)
    short, long = encode(tokenizer, ["Invoice", "the invoice " * 20], 8)
    assert [tokenizer.id_to_token(token) for token in short] == ["[CLS]", "invoice", "[SEP]"]
    assert len(long) == 8
    assert tokenizer.id_to_token(long[-1]) == "[SEP]"


def test_no_threads_are_left_that_would_make_a_fork_unsafe(tmp_path: Path) -> None:
    code = (
        TRAIN
        + "import os; encoded = trained(texts, 600).encode(texts[0]); print(len(os.listdir('/proc/self/task')))"
    )
    variables = {"XDG_CACHE_HOME": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "1"
