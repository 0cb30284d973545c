"""Downloads the public data sets that the ready sweeps can read.

The digests are the SHA-256 that torchvision pins for the same files, so a mirror, even one without
TLS, can neither damage a file nor replace it unnoticed. pooch downloads a file under a temporary
name, checks its digest and then gives it its name, so an interrupted download leaves no file that
looks complete. It cannot resume one: the next attempt begins again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import BadInput, HarnessError, did_you_mean, one_line

CHUNK_BYTES = 2**16  # the progress bar moves after each
TIMEOUT = 30.0  # seconds without a byte

ProgressCallback = Callable[[int], None]  # called with the number of bytes so far


@dataclass(frozen=True)
class DataFile:
    """A file of a data set; one with this digest is complete and correct."""

    name: str
    size: int  # bytes
    sha256: str


@dataclass(frozen=True)
class DataSet:
    """The files of a data set, and where they are served."""

    mirrors: tuple[str, ...]  # URLs that end in a slash, to which a file's name is appended
    files: tuple[DataFile, ...]


# By the name that `harness fetch` takes. Of equal content, mirrors are tried in this order.
DATA_SETS = {
    "mnist": DataSet(
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        (
            DataFile(
                "train-images-idx3-ubyte.gz",
                9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            DataFile(
                "train-labels-idx1-ubyte.gz",
                28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            DataFile(
                "t10k-images-idx3-ubyte.gz",
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            DataFile(
                "t10k-labels-idx1-ubyte.gz",
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
    ),
    "fashion-mnist": DataSet(
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        (
            DataFile(
                "train-images-idx3-ubyte.gz",
                26_421_880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            DataFile(
                "train-labels-idx1-ubyte.gz",
                29_515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
            DataFile(
                "t10k-images-idx3-ubyte.gz",
                4_422_102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            ),
            DataFile(
                "t10k-labels-idx1-ubyte.gz",
                5_148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        ),
    ),
}


def find_data_set(name: str) -> DataSet:
    """Return the data set of that name; raises BadInput if there is none."""
    if name not in DATA_SETS:
        raise BadInput(f"data set {name!r}: unknown; {did_you_mean(name, DATA_SETS)}")
    return DATA_SETS[name]


def missing_files(data_set: DataSet, folder: Path) -> list[DataFile]:
    """Return the files that `folder` lacks; those that it has are correct.

    The folder is made if it does not exist. Raises BadInput if the folder can't be made, or holds a
    different file under one of the names: that may be somebody's own data, so it is not
    overwritten.
    """
    missing = []
    with _folder_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for file in data_set.files:
            path = folder / file.name
            if not path.exists():
                missing.append(file)
                continue
            digest = sha256_of(path)
            if digest != file.sha256:
                raise BadInput(
                    f"{path}: found a different file (sha256 {digest}), allowed: the public one"
                    f" (sha256 {file.sha256}); move it away or choose another folder"
                )
    return missing


def download(
    file: DataFile,
    mirrors: Sequence[str],
    folder: Path,
    on_progress: ProgressCallback = lambda received: None,
    *,
    timeout: float = TIMEOUT,
) -> None:
    """Download a file into `folder` from the first mirror that serves the correct one.

    `on_progress` is called after each chunk; its count begins again with each mirror. `timeout` is
    in seconds without a byte. Raises HarnessError with the reason of each mirror if none serves the
    file, BadInput if the folder can't be written.
    """
    import pooch  # half a second, for this one command
    import requests

    pooch.get_logger().setLevel(logging.ERROR)  # it would log the URL and the temporary name
    failures = []
    for mirror in mirrors:
        # Without this header some servers compress once more, and the bytes on the way are not
        # those of the file.
        downloader = pooch.HTTPDownloader(
            progressbar=_ProgressBar(file.size, on_progress),
            chunk_size=CHUNK_BYTES,
            timeout=timeout,
            headers={"Accept-Encoding": "identity"},
        )
        try:
            pooch.retrieve(
                mirror + file.name,
                known_hash=f"sha256:{file.sha256}",
                fname=file.name,
                path=folder,
                downloader=downloader,
            )
        except (requests.RequestException, ValueError) as error:
            failures.append(f"{mirror}: {_failure_reason(error, file)}")
        except OSError as error:
            raise _folder_error(folder, error) from None
        else:
            return
    raise HarnessError(f"{file.name}: no mirror gave it: {'; '.join(failures)}")


class _ProgressBar:
    """What pooch takes for a progress bar of tqdm: it counts bytes and reports the count."""

    def __init__(self, size: int, on_progress: ProgressCallback) -> None:
        self.size = size
        self.on_progress = on_progress
        self.received = 0  # bytes
        self.total = size  # pooch sets it to the length that the mirror states
        on_progress(0)

    def update(self, size: int) -> None:
        """Count `size` more bytes; pooch counts the last chunk as a full one."""
        self.received = min(self.received + size, self.size)
        self.on_progress(self.received)

    def reset(self) -> None:
        """Count from 0 again.

        pooch does so once all bytes have arrived, and then counts `total` at once.
        """
        self.received = 0

    def close(self) -> None:
        """Do nothing: the caller owns what is drawn."""


def _failure_reason(error: Exception, file: DataFile) -> str:
    """Return why a mirror did not serve a file, in one line.

    The order matters: an HTTPError and a Timeout are RequestExceptions too, and a connection that
    times out while bytes arrive is a ConnectionError that says so only in its text.
    """
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout) or "timed out" in str(error):
        return "timed out"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "connection cut"
    if isinstance(error, requests.ConnectionError):
        # requests tells the two cases apart only in its text, which names several objects in
        # memory.
        if "refused" in str(error):
            return "connection refused"
        return one_line(error)
    if isinstance(error, requests.RequestException):
        return one_line(error)
    # pooch raises ValueError for a file of another digest.
    return f"wrong file refused (allowed: sha256 {file.sha256}; {one_line(error)})"


def _folder_error(folder: Path, error: OSError) -> BadInput:
    """Return the error for a folder that can't be made, read or written."""
    return BadInput(
        f"{folder}: can't be used: {error.strerror or error}; allowed: a folder that can be written"
    )


@contextmanager
def _folder_errors(folder: Path) -> Iterator[None]:
    """Raise BadInput for what the operating system says about a folder."""
    try:
        yield
    except OSError as error:
        raise _folder_error(folder, error) from None


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
