"""Trains a WordPiece tokenizer on the training texts: the same vocabulary in every process."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from tokenizers import BertWordPieceTokenizer, Tokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_ALPHABET = 1000  # characters at most that get tokens of their own
MIN_FREQUENCY = 2  # occurrences at least of a pair that is merged into a token


def encode(
    tokenizer: Tokenizer | BertWordPieceTokenizer, texts: Sequence[str], sequence: int
) -> list[list[int]]:
    """Return the token ids of each text, cut to `sequence` tokens and not padded."""
    tokenizer.enable_truncation(sequence)
    tokenizer.no_padding()
    # encode_batch would start threads, and a process with threads cannot safely fork the workers
    # of a DataLoader.
    return [tokenizer.encode(text).ids for text in texts]


def trained(texts: Sequence[str], vocabulary: int) -> BertWordPieceTokenizer:
    """Return an uncased tokenizer of at most `vocabulary` tokens, which follows from the texts alone.

    The trainer numbers characters in the order of a hash table, which differs between processes,
    and merges pairs of equal frequency in the order of these numbers. Passing all characters as
    special tokens numbers them in a fixed order first.
    """
    # It trains in the calling thread, which only this variable can tell it.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    learner = BertWordPieceTokenizer()
    alphabet = _alphabet(learner, texts)
    continuations = [f"##{character}" for character in alphabet]
    learner.train_from_iterator(
        texts,
        vocab_size=vocabulary,
        min_frequency=MIN_FREQUENCY,
        special_tokens=[*SPECIAL, *alphabet, *continuations],
        limit_alphabet=len(alphabet),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    return BertWordPieceTokenizer(learner.get_vocab())


def _alphabet(tokenizer: BertWordPieceTokenizer, texts: Sequence[str]) -> list[str]:
    """Return the most frequent characters of the normalized texts, sorted."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(tokenizer.normalize(text))
    by_frequency = sorted(counts, key=lambda character: (-counts[character], character))
    frequent = by_frequency[:MAX_ALPHABET]
    return sorted(character for character in frequent if not character.isspace())
