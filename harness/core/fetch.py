"""Downloads the public data sets that the ready sweeps can read.

The digests are the SHA-256 that torchvision pins for the same files, so a mirror, even one without
TLS, can neither damage a file nor replace it unnoticed. pooch downloads a file under a temporary
name, verifies its digest and then renames it, so an interrupted download leaves no file that looks
complete. It cannot resume one: the next attempt starts from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import BadInput, HarnessError, did_you_mean, one_line

TIMEOUT = 30.0  # seconds without a byte
MAX_REASON = 500  # characters of why a mirror failed; requests says the cause at the end


@dataclass(frozen=True)
class DataSet:
    """The files of a data set, and where they are served."""

    mirrors: tuple[str, ...]  # base URLs that end in a slash, tried in this order
    registry: Mapping[str, str]  # file name -> SHA-256


# By the name that `harness fetch` takes.
DATA_SETS = {
    "mnist": DataSet(
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    "fashion-mnist": DataSet(
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        {
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
    ),
}


def fetch_files(
    name: str, folder: Path, *, progressbar: bool = False
) -> Iterator[tuple[Path, bool]]:
    """Yield the verified files of a data set in a folder, each with whether it was there already.

    A file that is missing is downloaded, and the folder made if it does not exist. Raises BadInput for an
    unknown name, for a folder that can't be written, and for a different file under one of the names, which
    may be the user's own and is not overwritten; HarnessError if all mirrors fail.
    """
    import pooch  # half a second, for this one command

    if name not in DATA_SETS:
        raise BadInput(f"data set {name!r}: unknown; {did_you_mean(name, DATA_SETS)}")
    data_set = DATA_SETS[name]
    for file_name, digest in data_set.registry.items():
        path = folder / file_name
        try:
            is_there = path.exists()
            if is_there and pooch.file_hash(path) != digest:
                raise BadInput(
                    f"{path}: found a different file than the public one (sha256 {digest}); move it away or"
                    " choose another folder"
                )
            if not is_there:
                _download(data_set.mirrors, path.absolute(), digest, progressbar=progressbar)
        except OSError as error:
            reason = error.strerror or one_line(error)
            allowed = "a folder that can be written"
            raise BadInput(f"{folder}: can't be used: {reason}; allowed: {allowed}") from None
        yield path, is_there


def _download(mirrors: Sequence[str], path: Path, digest: str, *, progressbar: bool) -> None:
    """Download a file from the first mirror that serves it intact; raises HarnessError without any."""
    import pooch
    import requests

    pooch.get_logger().setLevel("ERROR")  # it would log the URL and the temporary name
    # Without this header a server may compress the file once more, and the length that it states,
    # which the bar ends at, is not that of the file.
    downloader = pooch.HTTPDownloader(
        progressbar=progressbar, timeout=TIMEOUT, headers={"Accept-Encoding": "identity"}
    )
    failures = []
    for mirror in mirrors:
        try:
            url = mirror + path.name
            pooch.retrieve(url, digest, path.name, path.parent, downloader=downloader)
            return
        except (requests.RequestException, ValueError) as error:  # ValueError: another digest
            failures.append(f"{mirror}: {one_line(error, MAX_REASON)}")
    raise HarnessError(f"{path.name}: all mirrors failed: {'; '.join(failures)}")
