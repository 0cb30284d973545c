"""Downloads the public data sets that the ready sweeps can read.

The digests are the SHA-256 that torchvision pins for the same files, so a mirror, even one without
TLS, can neither damage a file nor replace it unnoticed. pooch downloads a file under a temporary
name, verifies its digest and then renames it, so an interrupted download leaves no file that looks
complete. It cannot resume one: the next attempt starts from the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def find_data_set(name: str) -> DataSet:
    """Return the data set of that name; raises BadInput if there is none."""
    if name not in DATA_SETS:
        raise BadInput(f"data set {name!r}: unknown; {did_you_mean(name, DATA_SETS)}")
    return DATA_SETS[name]


def existing_files(data_set: DataSet, folder: Path) -> list[str]:
    """Return the names of the files that `folder` has already, each of them verified.

    Raises BadInput for a different file under one of the names, which may be the user's own and is
    not overwritten, and for one that can't be read.
    """
    import pooch  # half a second, for this one command

    names = []
    for name, sha256 in data_set.registry.items():
        path = folder / name
        try:
            if not path.exists():
                continue
            digest = pooch.file_hash(path)
        except OSError as error:
            raise _folder_error(folder, error) from None
        if digest != sha256:
            raise BadInput(
                f"{path}: found a different file (sha256 {digest}), allowed: the public one"
                f" (sha256 {sha256}); move it away or choose another folder"
            )
        names.append(name)
    return names


def download(data_set: DataSet, name: str, folder: Path, *, progressbar: bool = False) -> None:
    """Download a file of a data set into `folder` from the first mirror that serves it intact.

    The folder is created if it does not exist. `progressbar` shows one on stderr. Raises HarnessError
    with the reason of each mirror if all of them fail, BadInput if the folder can't be written.
    """
    import pooch
    import requests

    pooch.get_logger().setLevel("ERROR")  # it would log the URL and the temporary name
    # Without this header a server may compress the file once more, and the length that it states,
    # which the bar ends at, is not that of the file.
    downloader = pooch.HTTPDownloader(
        progressbar=progressbar, timeout=TIMEOUT, headers={"Accept-Encoding": "identity"}
    )
    failures = []
    for mirror in data_set.mirrors:
        try:
            pooch.retrieve(
                mirror + name,
                known_hash=data_set.registry[name],
                fname=name,
                path=folder.absolute(),  # pooch would expand a leading ~
                downloader=downloader,
            )
        except (requests.RequestException, ValueError) as error:  # ValueError: another digest
            failures.append(f"{mirror}: {one_line(error, MAX_REASON)}")
        except OSError as error:
            raise _folder_error(folder, error) from None
        else:
            return
    raise HarnessError(f"{name}: all mirrors failed: {'; '.join(failures)}")


def _folder_error(folder: Path, error: OSError) -> BadInput:
    """Return the error for a folder that can't be made, read or written."""
    return BadInput(
        f"{folder}: can't be used: {error.strerror or one_line(error)}; allowed: a folder that can"
        " be written"
    )
