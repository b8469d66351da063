"""What kind of data a path holds, by the files that are there."""

from __future__ import annotations

import tarfile
from pathlib import Path

from dist_mp.data.arrays import NAMES
from dist_mp.data.corpus import is_corpus
from dist_mp.data.images import CIFAR_FOLDER, CIFAR_TEST, IDX_FILES
from dist_mp.data.machine import DESCRIPTION
from dist_mp.data.processed import INDEX
from dist_mp.errors import UserError

KINDS = {
    "shots": "prepared shots (index.json)",
    "raw": "raw shots of a tokamak (machine.yaml)",
    "frnn": "processed shots of FRNN (MACHINE_NUMBER.npz)",
    "corpus": "a prepared corpus (index.json, vocabulary.txt)",
    "text": "a corpus (files that end in train.txt, valid.txt and test.txt)",
    "reviews": "aclImdb (its archive or folder)",
    "series": "a time series file (NAME_TRAIN.ts)",
    "idx": "MNIST or Fashion-MNIST (idx files)",
    "cifar": "CIFAR-10 (its archive or folder)",
    "arrays": "arrays (an .npz, or a folder with x_train.npy)",
}


def detect(path: Path) -> tuple[str, Path]:
    """The kind of data at `path`, a key of `KINDS`, and where it is: `path`, or the only data file in that folder."""
    if path.is_dir():
        kind = _folder_kind(path)
        files = [file for pattern in ("*_TRAIN.ts", "*.tar", "*.tar.gz", "*.npz") for file in path.glob(pattern)]
        if not kind and len(files) == 1:
            kind, path = _file_kind(files[0]), files[0]
    elif path.is_file():
        kind = _file_kind(path)
    else:
        raise UserError(f"{path}: no such file or folder")
    if not kind:
        raise UserError(f"{path}: holds nothing that is known; known are {'; '.join(KINDS.values())}")
    return kind, path


def _folder_kind(path: Path) -> str:
    def has(*names: str) -> bool:
        return any((path / name).exists() for name in names)

    if has(INDEX):
        return "corpus" if is_corpus(path) else "shots"
    if has(DESCRIPTION):
        return "raw"
    if has(f"{NAMES[0]}.npy"):
        return "arrays"
    if has(IDX_FILES[0], f"{IDX_FILES[0]}.gz"):
        return "idx"
    if has(CIFAR_FOLDER, CIFAR_TEST):
        return "cifar"
    if has("aclImdb", "train/pos", "train/neg"):
        return "reviews"
    if any(path.glob("*train.txt")):
        return "text"
    return "frnn" if any(file.stem.rpartition("_")[2].isdigit() for file in path.glob("*.npz")) else ""


def _file_kind(path: Path) -> str:
    if path.suffix == ".ts":
        return "series"
    if path.suffix == ".npz":
        return "arrays"
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                root = member.name.split("/")[0]
                if root == CIFAR_FOLDER:
                    return "cifar"
                if member.isreg():
                    return "reviews"
    except (tarfile.TarError, OSError, EOFError, ValueError):
        return ""
    return ""
