"""Which shots are trained on, held out, and set aside for the test: by fractions of each class, or by lists."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dist_mp.config import ShotsData, ShotWindows
from dist_mp.data.processed import ProcessedShots
from dist_mp.data.shot import ShotSource
from dist_mp.errors import UserError

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Partition:
    """Indices of a source's shots, disjoint and rising."""

    train: Indices
    valid: Indices
    test: Indices


def stratified_partition(
    source: ShotSource, settings: ShotWindows, where: str, test_fraction: float = 0.0
) -> Partition:
    """Shuffle each class by `settings.seed` and cut it by the fractions; `where` names the setting at fault."""
    everything = np.arange(len(source.lengths))
    rest, test = everything, everything[:0]
    if test_fraction:
        rest, test = stratified_split(everything, source.disruptive, test_fraction, (settings.seed, 3), where, "test")
    fraction = settings.validation_fraction
    train, valid = stratified_split(rest, source.disruptive, fraction, (settings.seed, 2), where, "validation")
    return Partition(train, valid, test)


def stratified_split(
    indices: Indices,
    disruptive: NDArray[np.bool_],
    fraction: float,
    seed: tuple[int, ...],
    where: str,
    part: str,
) -> tuple[Indices, Indices]:
    """Hold out `fraction` of each class of `indices`; both classes must have a shot on both sides."""
    rng = np.random.default_rng(seed)
    kept, held_out = [], []
    for kind, name in ((True, "disruptive"), (False, "clean")):
        mixed = rng.permutation(indices[disruptive[indices] == kind])
        held = round(len(mixed) * fraction)
        if not 0 < held < len(mixed):
            raise UserError(
                f"{where}: {len(mixed)} {name} shots cannot be split with {part}_fraction {fraction:g} so that "
                f"training and {part} have at least one each; use more shots"
            )
        held_out.append(mixed[:held])
        kept.append(mixed[held:])
    return np.sort(np.concatenate(kept)), np.sort(np.concatenate(held_out))


def partition_by_lists(source: ProcessedShots, settings: ShotsData) -> Partition:
    """The shots that the files of `settings` name; a listed shot that was refused when prepared is left out.

    Without a list of held-out shots a fraction of each class of the training shots is held out. Refused: a number that
    the folder does not know, one that is listed twice, also in two lists, and a list that leaves no shot to train on
    or to hold out.
    """
    if settings.test_fraction:
        raise UserError(
            "data.test_fraction: splits without lists; with data.train_list name the test shots in test_list"
        )
    index = {int(number): i for i, number in enumerate(source.numbers)}
    taken: dict[int, str] = {}
    parts: list[Indices] = []
    for key, path in (
        ("train_list", settings.train_list),
        ("valid_list", settings.valid_list),
        ("test_list", settings.test_list),
    ):
        chosen = []
        for line, number in read_numbers(Path(path)) if path else []:
            where = f"data.{key}: {path}, line {line}: shot {number}"
            if number in taken:
                raise UserError(f"{where} is listed before, in {taken[number]}; every shot has one place")
            taken[number] = path
            if number in index:
                chosen.append(index[number])
            elif number not in source.refused:
                raise UserError(f"{where} is not in {settings.path}")
        if path and not chosen:
            raise UserError(f"data.{key}: {path}: names no shot that can be used")
        parts.append(np.sort(np.array(chosen, np.int64)))
    train, valid, test = parts
    if not settings.valid_list:
        train, valid = stratified_split(
            train, source.disruptive, settings.validation_fraction, (settings.seed, 2), "data.train_list", "validation"
        )
    return Partition(train, valid, test)


def read_numbers(path: Path) -> list[tuple[int, int]]:
    """Line and shot number of each line of a list; further columns and comments (#) are left aside."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; it names a shot a line") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; a list of shots is text") from error
    numbers = []
    for line, content in enumerate(text.splitlines(), 1):
        words = content.split("#")[0].split()
        if words:
            try:
                numbers.append((line, int(words[0])))
            except ValueError as error:
                raise UserError(f"{path}, line {line}: not a shot number: {words[0][:40]!r}") from error
    return numbers
