from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from workloads.tickets import tickets
from workloads.tokenizer import SPECIAL, encode, trained

TEXTS = [text for text, _ in tickets(500, 0)]
# Prints what a fresh process learns, and how many threads it has then.
TRAIN = """
import hashlib, os
from workloads.tickets import tickets
from workloads.tokenizer import trained
texts = [text for text, _ in tickets(500, 0)]
tokenizer = trained(texts, 600)
tokenizer.encode(texts[0])
print(hashlib.sha256(tokenizer.to_str().encode()).hexdigest(), len(os.listdir("/proc/self/task")))
"""


def test_every_process_learns_the_same_and_no_thread_makes_a_fork_unsafe(tmp_path: Path) -> None:
    digests = set()
    for seed, parallel in (("0", "false"), ("1", "true")):
        variables = {
            "PYTHONHASHSEED": seed,
            "TOKENIZERS_PARALLELISM": parallel,
            "OPENBLAS_NUM_THREADS": "1",
            "XDG_CACHE_HOME": str(tmp_path / seed),
        }
        command = [sys.executable, "-c", TRAIN]
        environment = os.environ | variables
        printed = subprocess.check_output(command, env=environment, text=True)
        digest, threads = printed.split()
        digests.add(digest)
        assert threads == "1"
    assert len(digests) == 1


def test_the_vocabulary() -> None:
    vocabulary = trained(TEXTS, 600).get_vocab()
    assert [vocabulary[token] for token in SPECIAL] == [0, 1, 2, 3, 4]
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    assert len(vocabulary) <= 600
    assert "invoice" in vocabulary


def test_texts_are_framed_and_cut() -> None:
    tokenizer = trained(TEXTS, 600)
    short, long = encode(tokenizer, ["Invoice", "the invoice " * 20], 8)
    assert [tokenizer.id_to_token(token) for token in short] == ["[CLS]", "invoice", "[SEP]"]
    assert len(long) == 8
    assert tokenizer.id_to_token(long[-1]) == "[SEP]"
