"""A WordPiece tokenizer trained on the training texts: the same vocabulary in every process."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import BertProcessing
from tokenizers.trainers import WordPieceTrainer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ALPHABET = 1000  # most characters that get tokens of their own
RECIPE = 1  # raised when the training below changes, so that nothing cached before is taken for it


def trained(texts: Sequence[str], vocabulary: int) -> Tokenizer:
    """An uncased tokenizer with at most `vocabulary` tokens, from the cache if the same texts trained one before."""
    path = _cache() / f"{_digest(texts, vocabulary)}.json"
    if not path.is_file():
        _write(path, _train(texts, vocabulary).to_str())
    return Tokenizer.from_file(str(path))


def encode(tokenizer: Tokenizer, texts: Sequence[str], sequence: int) -> list[list[int]]:
    """Token numbers of each text, cut to `sequence` and not padded."""
    tokenizer.enable_truncation(sequence)
    tokenizer.no_padding()
    # One by one: a batch would start threads, and a process with threads cannot safely fork loader workers.
    return [tokenizer.encode(text).ids for text in texts]


def _train(texts: Sequence[str], vocabulary: int) -> Tokenizer:
    with _one_thread():
        learner = _untrained({})
        # The trainer numbers characters in the random order of a hash table, and ties go by number: number them first.
        kept = _alphabet(learner, texts)
        numbered = [*SPECIAL, *kept, *(f"##{character}" for character in kept)]
        learner.train_from_iterator(
            texts,
            WordPieceTrainer(
                vocab_size=vocabulary,
                min_frequency=2,
                special_tokens=numbered,
                limit_alphabet=len(kept),
                initial_alphabet=kept,
                show_progress=False,
            ),
        )
    return _untrained(learner.get_vocab())


def _untrained(vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    if vocabulary:
        tokenizer.add_special_tokens(list(SPECIAL))
        tokenizer.post_processor = BertProcessing(
            ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
        )
    return tokenizer


def _alphabet(tokenizer: Tokenizer, texts: Sequence[str]) -> list[str]:
    """The most frequent characters of the normalised texts, sorted."""
    counts = Counter(
        character for text in texts for character in tokenizer.normalizer.normalize_str(text)
    )
    frequent = sorted(counts, key=lambda character: (-counts[character], character))
    return sorted(character for character in frequent[:ALPHABET] if not character.isspace())


@contextmanager
def _one_thread() -> Iterator[None]:
    """Training has no other switch than this variable to stay in the calling thread."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "distributed-training-harness" / "tokenizers"


def _digest(texts: Sequence[str], vocabulary: int) -> str:
    content = json.dumps([RECIPE, version("tokenizers"), vocabulary, list(texts)])
    return hashlib.sha256(content.encode()).hexdigest()


def _write(path: Path, content: str) -> None:
    """Whole or not at all, whoever else writes the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)
