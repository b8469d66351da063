"""Training on one machine's shots, testing on another's: signals by name, scale by machine, own shot numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dist_mp.config import CampaignData, Config, DisruptionModel, ShotsData
from dist_mp.data.campaign import Campaign
from dist_mp.data.normalise import Normaliser
from dist_mp.data.open import open_dataset
from dist_mp.data.processed import ProcessedShots, ShotFormat, write_processed
from dist_mp.data.shot import Shot, Signal
from dist_mp.data.shots import ShotDataset
from dist_mp.errors import UserError

HERE = CampaignData(shots=16, min_steps=20, max_steps=50, profile_points=8, seed=1)
THERE = Campaign(CampaignData(shots=10, min_steps=20, max_steps=50, profile_points=8, seed=2))
FACTOR = 7.0
"""The other machine measures everything in other units."""


def prepare(folder: Path, campaign: Campaign, **shared: object) -> Path:
    form = ShotFormat(campaign.scalar_signals, campaign.profile_signals, 8, 10.0)
    write_processed(folder, form, range(len(campaign.lengths)), campaign.shot, "campaign")
    return folder


def prepare_other(folder: Path, step: float = 10.0, without: str = "", points: int = 8) -> Path:
    """Numbers from 90000 on, the scalars in another order with one more among them, profiles swapped."""
    scalars = [Signal("stray", "", ""), *reversed([s for s in THERE.scalar_signals if s.name != without])]
    profiles = THERE.profile_signals[::-1]
    place = {signal.name: i for i, signal in enumerate(THERE.scalar_signals)}

    def shot(number: int) -> Shot:
        made = THERE.shot(number - 90_000)
        columns = [
            np.linspace(0, 1, made.steps) if s.name == "stray" else made.scalars[:, place[s.name]] for s in scalars
        ]
        missing = [False, *(bool(made.missing[place[s.name]]) for s in scalars[1:])]
        at = len(THERE.scalar_signals)
        return Shot(
            number,
            made.disruptive,
            FACTOR * np.stack(columns, axis=1).astype(np.float32),
            FACTOR * made.profiles[:, ::-1, :points],
            np.array([*missing, made.missing[at + 1], made.missing[at]]),
        )

    write_processed(folder, ShotFormat(tuple(scalars), profiles, points, step), range(90_000, 90_010), shot, "other")
    return folder


def open_shots(folder: Path, **changes: object) -> ShotDataset:
    data = ShotsData(path=str(folder), length=16, warning_steps=12, **changes)  # type: ignore[arg-type]
    dataset = open_dataset(Config(data=data, model=DisruptionModel()))
    assert isinstance(dataset, ShotDataset)
    return dataset


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    parent = tmp_path_factory.mktemp("machines")
    return prepare(parent / "here", Campaign(HERE)), prepare_other(parent / "there")


@pytest.mark.parametrize("scale", ["own", "training"])
def test_the_other_machines_shots_are_the_test(folders: tuple[Path, Path], scale: str) -> None:
    dataset = open_shots(folders[0], test_path=str(folders[1]), test_scale=scale)
    assert dataset.test is not None
    assert dataset.test.numbers.tolist() == list(range(90_000, 90_010))
    assert dataset.test.disruptive.tolist() == THERE.disruptive.tolist()
    assert len(dataset.train.numbers) + len(dataset.valid.numbers) == 16
    assert f"10 test ({int(THERE.disruptive.sum())} disruptive" in dataset.describe()
    assert dataset.describe().count(str(folders[1])) == 1
    normaliser, factor = dataset.normaliser, np.float32(FACTOR)
    if scale == "own":
        # Its own shots in its own units: the factor is gone.
        normaliser, factor = Normaliser.fit(THERE.shot(i) for i in range(10)), np.float32(1.0)
    seen = np.zeros(10, int)
    for batch in dataset.test.batches(0, 4, 0, 4):
        assert batch.sequence is not None and batch.position is not None
        for row in np.flatnonzero(batch.sequence >= 0):
            which, count = int(batch.sequence[row]), int(batch.weight[row].sum())
            shot = THERE.shot(which)
            expected = normaliser.window(factor * shot.features(), shot.missing, int(batch.position[row]), count)
            np.testing.assert_allclose(batch.inputs[row, :count], expected, atol=2e-4)
            seen[which] += count
    assert seen.tolist() == THERE.lengths.tolist()


def test_numbers_are_those_of_the_machine(folders: tuple[Path, Path]) -> None:
    dataset = open_shots(folders[1])
    known = ProcessedShots(folders[1])
    together = np.sort(np.concatenate([dataset.train.numbers, dataset.valid.numbers]))
    assert together.tolist() == known.numbers.tolist() == list(range(90_000, 90_010))


def test_what_does_not_match_gets_one_line(folders: tuple[Path, Path], tmp_path: Path) -> None:
    here = folders[0]
    cases = {
        r"no scalar signal 'li'; there are stray, .* machine.yaml all the same": prepare_other(
            tmp_path / "a", without="li"
        ),
        r"steps of 1 ms; the model knows 10 ms": prepare_other(tmp_path / "b", step=1.0),
        r"profiles of 6 points; the model knows 8": prepare_other(tmp_path / "c", points=6),
        r"nowhere/index.json: cannot be read": tmp_path / "nowhere",
    }
    for message, path in cases.items():
        with pytest.raises(UserError, match=message):
            open_shots(here, test_path=str(path))
    with pytest.raises(UserError, match=r"data.test_path: is all of the test"):
        open_shots(here, test_path=str(folders[1]), test_fraction=0.2)
