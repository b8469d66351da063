"""Raw shots: text files and HDF5 to prepared shots, what is refused and why, and a campaign there and back."""

import re
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_mp.config import CampaignData, Config, DisruptionModel, ShotsData
from dist_mp.data.campaign import Campaign
from dist_mp.data.machine import Machine, SignalFile, read_machine, read_shot_list, write_machine
from dist_mp.data.open import open_dataset
from dist_mp.data.processed import Preparation, ProcessedShots, prepare_shots
from dist_mp.data.raw import resample, write_shots
from dist_mp.data.recordings import Recording, read_text
from dist_mp.data.shots import ShotDataset
from dist_mp.errors import UserError

SMALL = CampaignData(shots=20, min_steps=30, max_steps=60, profile_points=6, length=16, warning_steps=12)

MACHINE = Machine(
    name="toka",
    step_milliseconds=2.0,
    profile_points=5,
    current_threshold=10.0,
    scalars=[
        SignalFile(name="ip", folder="ip"),
        SignalFile(name="bolo", folder="bolo/total", shift_milliseconds=3.0),
    ],
    profiles=[SignalFile(name="te", folder="te")],
)


def table(*columns: np.ndarray) -> str:
    return "".join(" ".join(f"{v:.9g}" for v in row) + "\n" for row in np.column_stack(columns))


def files() -> dict[str, str]:
    """Shot 7, clean: 0 to 0.3 s at 1 kHz, current above 10 from 0.05 s to 0.2 s."""
    time = np.arange(0, 0.3, 0.001)
    coarse = np.arange(0, 0.3, 0.05)
    where = np.broadcast_to([1.0, 0.0, 0.5], (len(coarse), 3))
    te = np.stack([0 * coarse, 100 + coarse, 50 + 0 * coarse], axis=1)
    return {
        "ip": table(time, np.where((time > 0.0495) & (time < 0.2005), -20.0 - time, 0.0)),
        "bolo/total": table(time, 1000 * time),
        "te": table(coarse, where) + table(coarse, te),
    }


def write(folder: Path, shots: str = "7 -1\n", changes: dict[str, str | bytes | None] | None = None) -> Path:
    folder.mkdir(parents=True)
    write_machine(folder, MACHINE)
    (folder / "shot_list.txt").write_text(shots, encoding="utf-8")
    everything: dict[str, str | bytes | None] = {**files(), **(changes or {})}
    for shot in re.findall(r"^\d+", shots, re.MULTILINE):
        for name, text in everything.items():
            if text is not None:
                path = folder / "signal_data/toka" / name / f"{shot}.txt"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def prepared(folder: Path, **changes: object) -> tuple[Preparation, ProcessedShots]:
    result = prepare_shots(folder, folder / "out", **changes)  # type: ignore[arg-type]
    return result, ProcessedShots(folder / "out")


def test_grid_shift_and_profiles(tmp_path: Path) -> None:
    result, source = prepared(write(tmp_path / "raw"), minimum_steps=50)
    assert result == Preparation(1, {})
    shot = source.shot(0)
    assert (shot.number, shot.disruptive, shot.missing.tolist()) == (7, False, [False] * 3)
    # From 0.05 s to 0.05 s after the last time above the threshold, 0.2 s, each 2 ms.
    time = 0.05 + 0.002 * np.arange(101)
    assert shot.steps == len(time)
    np.testing.assert_allclose(shot.scalars[:, 0], np.where(time < 0.2005, -20 - time, 0), rtol=1e-6)
    # Recorded each ms and known 3 ms later.
    np.testing.assert_allclose(shot.scalars[:, 1], 1000 * (time - 0.003), rtol=1e-4)
    # The last profile recorded before, channels in order of their coordinate, on five even points.
    past = np.floor(time / 0.05 + 1e-6) * 0.05
    expected = np.stack([100 + past, 75 + past / 2, 50 + 0 * past, 25 + 0 * past, 0 * past], axis=1)
    np.testing.assert_allclose(shot.profiles[:, 0], expected, rtol=1e-6, atol=1e-6)
    statistics = source.statistics(0)
    np.testing.assert_allclose(statistics.mean[:2], shot.scalars.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(statistics.maximum[2], shot.profiles.max())
    assert statistics.count.tolist() == [101, 101, 505]


def test_resampling_sees_nothing_of_the_future(tmp_path: Path) -> None:
    jump = np.arange(0, 0.3, 0.001)
    values = np.where(jump < 0.1, 1.0, 2.0) + 1e-3 * jump
    _, source = prepared(write(tmp_path / "raw", changes={"bolo/total": table(jump, values)}))
    time = 0.05 + 0.002 * np.arange(101)
    assert (source.shot(0).scalars[time < 0.103 - 1e-6, 1] < 1.5).all()
    assert (source.shot(0).scalars[time > 0.103 + 1e-6, 1] > 1.5).all()


def test_a_disruptive_shot_ends_with_its_disruption(tmp_path: Path) -> None:
    _, source = prepared(write(tmp_path / "raw", "7 0.17\n8 -1\n"), minimum_steps=20)
    assert source.disruptive.tolist() == [True, False]
    assert source.lengths.tolist() == [61, 101]


def test_a_missing_signal_leaves_the_shot(tmp_path: Path) -> None:
    result, source = prepared(write(tmp_path / "raw", changes={"te": None}))
    assert result.kept == 1
    assert source.shot(0).missing.tolist() == [False, False, True]
    assert not source.shot(0).profiles.any()


TIME = np.arange(0, 0.3, 0.001)
REFUSED = {
    "flat": ({"bolo/total": table(TIME, 0 * TIME + 3)}, "bolo: flat during the whole shot"),
    "nan": ({"bolo/total": "0 1\n0.1 nan\n0.2 2\n"}, "bolo: value is not a finite number in row 2"),
    "time nan": ({"bolo/total": "0 1\nnan 3\n0.2 2\n"}, "bolo: time is not a finite number in row 2"),
    "backwards": ({"bolo/total": "0 1\n0.2 2\n0.1 2\n"}, "bolo: time runs backwards or stands still after row 2"),
    "still": ({"bolo/total": "0 1\n0.2 2\n0.2 2\n"}, "bolo: time runs backwards or stands still after row 2, at 0.2 s"),
    "empty": ({"bolo/total": ""}, "bolo: an empty file"),
    "words": ({"bolo/total": "0 1\n0.1 two\n"}, "bolo: not a table of numbers"),
    "ragged": ({"bolo/total": "0 1\n0.1 2 3\n"}, "bolo: not a table of numbers"),
    "latin-1": ({"bolo/total": b"0 1\n0.1 \xb5\n"}, "bolo: not a table of numbers"),
    "binary": ({"bolo/total": bytes(range(256))}, "bolo: not a table of numbers"),
    "no time": ({"bolo/total": "1\n2\n"}, "bolo: a single column"),
    "two channels": ({"bolo/total": "0 1 2\n0.1 2 3\n"}, "bolo: 2 channels where a scalar signal has one"),
    "elsewhere": ({"bolo/total": "5 1\n6 2\n"}, "bolo: recorded from 5 s to 6 s, not in the shot"),
    "too large": ({"bolo/total": "0 1\n0.1 1e300\n"}, "bolo: a value beyond the range of 32-bit numbers"),
    "odd profile": ({"te": "0 1 2\n0.1 1 2\n0 3 4\n"}, "te: 3 rows; a profile has as many rows"),
    "profile times": ({"te": "0 1 2\n0.1 1 2\n0 3 4\n0.2 3 4\n"}, "te: the times of coordinates and values differ"),
    "no current": ({"ip": None}, "ip: not recorded; without the current"),
    "low current": ({"ip": table(TIME, 0 * TIME + 9)}, "ip: never above 10"),
    "short": ({"ip": table(TIME, np.where(TIME < 0.01, 20, 0))}, "ip: flows for 30 steps, which are too few"),
    "endless": ({"ip": "0 20\n1e9 20\n"}, r"ip: flows for 500,000,000,001 steps, which are too many"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_shots_are_reported_and_the_others_stay(tmp_path: Path, case: str) -> None:
    changes, reason = REFUSED[case]
    folder = write(tmp_path / "raw", "7 -1\n9 -1\n", changes)  # type: ignore[arg-type]
    for name, text in files().items():
        path = folder / "signal_data/toka" / name / "9.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    result, source = prepared(folder)
    assert source.numbers.tolist() == [9]
    assert result.kept == 1
    assert source.refused == result.refused
    (name, why), *others = result.refused[7].items()
    assert re.match(reason, f"{name}: {why}")
    assert not others
    assert f"{name}: {why}".isprintable()


def test_all_bad_signals_of_a_shot_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "raw", changes={"bolo/total": "", "te": "0 1\n"})
    with pytest.raises(UserError, match=r"none of 1 shots can be used; shot 7: bolo: an empty file; te: 1 rows"):
        prepare_shots(folder, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["raw"]


def test_disruption_outside_of_the_current(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"shot 7: ip: flows from 0.05 s to 0.299 s, but the shot disrupts at 0.04 s"):
        prepare_shots(write(tmp_path / "raw", "7 0.04\n"), tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("shot_list.txt", None, "cannot be read: No such file"),
        ("shot_list.txt", "", "lists no shots"),
        ("shot_list.txt", "# nothing\n\n", "lists no shots"),
        ("shot_list.txt", "7 -1\n8 1\n7 2\n", "line 3: shot 7 is listed twice"),
        ("shot_list.txt", "7\n", "line 1: needs a shot number and a time"),
        ("shot_list.txt", "7 -2\n", "line 1: needs a shot number and a time"),
        ("shot_list.txt", "7 nan\n", "line 1: needs a shot number and a time"),
        ("shot_list.txt", "../7 -1\n", "line 1: needs a shot number and a time"),
        ("shot_list.txt", b"7 -1\n\xff", "byte 5 is not UTF-8"),
        ("machine.yaml", None, "cannot be read: No such file"),
        ("machine.yaml", "scalars: [", "not YAML"),
        ("machine.yaml", "!!python/object/apply:os.system [true]", "not YAML"),
        ("machine.yaml", b"\xff", "not YAML"),
        ("machine.yaml", "just text", "the file: Input should be"),
        ("machine.yaml", "name: toka\nscalars: [{name: ip, folder: ../../etc}]\n", r"scalars.0.folder: String should"),
        (
            "machine.yaml",
            "name: toka\nscalars: [{name: ip, folder: ip, colour: red}]\n",
            r"scalars.0.colour: no such key",
        ),
        (
            "machine.yaml",
            "name: toka\nstep_milliseconds: .inf\nscalars: [{name: ip, folder: ip}]\n",
            "step_milliseconds",
        ),
        ("machine.yaml", "name: toka\nscalars: [{name: b, folder: b}]\n", "no scalar signal is named 'ip'"),
        (
            "machine.yaml",
            "name: toka\nscalars: [{name: ip, folder: b}, {name: ip, folder: c}]\n",
            "signal 'ip' is named twice",
        ),
    ],
)
def test_bad_descriptions_get_one_clear_line(tmp_path: Path, name: str, text: str | bytes | None, message: str) -> None:
    folder = write(tmp_path / "raw")
    (folder / name).unlink()
    if text is not None:
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=message) as caught:
        prepare_shots(folder, tmp_path / "out")
    assert str(caught.value).isprintable()
    assert name in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["raw"]


def test_nothing_is_written_over(tmp_path: Path) -> None:
    folder = write(tmp_path / "raw")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("kept")
    with pytest.raises(UserError, match="out: exists already"):
        prepare_shots(folder, tmp_path / "out")
    with pytest.raises(UserError, match="out: exists already"):
        write_shots(tmp_path / "out", Campaign(SMALL), "campaign", "ip", 0.05)
    assert (tmp_path / "out/mine").read_text() == "kept"
    with pytest.raises(UserError, match=r"ip/7.txt/out: cannot be made"):
        prepare_shots(folder, folder / "signal_data/toka/ip/7.txt/out")


def test_an_interrupted_preparation_leaves_nothing(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_shots(write(tmp_path / "raw"), tmp_path / "out", progress=stop)
    assert [p.name for p in tmp_path.iterdir()] == ["raw"]


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "7.txt"
    with path.open("wb") as file:
        file.truncate(2 << 30)
    with pytest.raises(Exception, match="are too much for a signal"):
        read_text(path, False)


def test_a_campaign_there_and_back(tmp_path: Path) -> None:
    campaign = Campaign(SMALL)
    machine = write_shots(tmp_path / "raw", campaign, "campaign", "ip", 0.05)
    assert read_machine(tmp_path / "raw") == machine
    assert len(read_shot_list(tmp_path / "raw/shot_list.txt")) == 20
    assert prepare_shots(tmp_path / "raw", tmp_path / "out", minimum_steps=10) == Preparation(20, {})
    source = ProcessedShots(tmp_path / "out")
    assert source.scalar_signals == campaign.scalar_signals
    assert source.profile_signals == campaign.profile_signals
    assert source.disruptive.tolist() == campaign.disruptive.tolist()
    assert source.lengths.tolist() == campaign.lengths.tolist()
    assert source.missing.any()
    for index in range(20):
        old, new = campaign.shot(index), source.shot(index)
        np.testing.assert_array_equal(new.missing, old.missing)
        np.testing.assert_array_equal(new.scalars, old.scalars)
        np.testing.assert_allclose(new.profiles, old.profiles, rtol=1e-6, atol=1e-7)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("shots")
    write_shots(parent / "raw", Campaign(SMALL), "campaign", "ip", 0.05)
    prepare_shots(parent / "raw", parent / "shots", minimum_steps=10)
    return parent / "shots"


def shots(folder: Path, **changes: object) -> ShotDataset:
    data = ShotsData(path=str(folder), length=16, warning_steps=12, **changes)  # type: ignore[arg-type]
    dataset = open_dataset(Config(data=data, model=DisruptionModel()))
    assert isinstance(dataset, ShotDataset)
    return dataset


def test_prepared_shots_train_like_the_campaign(folder: Path) -> None:
    recorded, generated = shots(folder, cut_steps=0), open_dataset(Config(data=SMALL, model=DisruptionModel()))
    assert isinstance(generated, ShotDataset)
    np.testing.assert_allclose(recorded.normaliser.scale, generated.normaliser.scale, rtol=1e-5)
    assert recorded.spec == generated.spec
    left, right = (list(d.train.batches(1, 6, 2, 3)) for d in (recorded, generated))
    assert len(left) == len(right) > 3
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a.inputs, b.inputs, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(a.targets, b.targets)
    assert recorded.describe().startswith(f"{folder}: 15 training (6 disruptive")


def test_splits_by_fraction(folder: Path) -> None:
    dataset = shots(folder, test_fraction=0.2)
    assert dataset.test is not None
    parts = [dataset.train.numbers, dataset.valid.numbers, dataset.test.numbers]
    assert [len(part) for part in parts] == [12, 4, 4]
    assert sorted(np.concatenate(parts)) == list(range(20))
    assert all(0 < s.disruptive.sum() < len(s.disruptive) for s in (dataset.train, dataset.valid, dataset.test))


def write_list(path: Path, numbers: object) -> str:
    path.write_text("# shots\n" + "".join(f"{number} -1\n" for number in numbers))  # type: ignore[attr-defined]
    return str(path)


def test_splits_by_list(folder: Path, tmp_path: Path) -> None:
    train = write_list(tmp_path / "a", range(3, 14))
    valid, test = write_list(tmp_path / "b", [19, 0]), write_list(tmp_path / "c", [1, 2, 15])
    dataset = shots(folder, train_list=train, valid_list=valid, test_list=test)
    assert dataset.train.numbers.tolist() == list(range(3, 14))
    assert dataset.valid.numbers.tolist() == [0, 19]
    assert dataset.test is not None and dataset.test.numbers.tolist() == [1, 2, 15]
    by_fraction = shots(folder, train_list=train, test_list=test)
    together = np.concatenate([by_fraction.train.numbers, by_fraction.valid.numbers])
    assert sorted(together) == list(range(3, 14))


@pytest.mark.parametrize(
    ("train", "valid", "message"),
    [
        ([1, 2, 1], [4], r"data.train_list: .*a, line 4: shot 1 is listed before, in .*a;"),
        ([1, 2], [4, 2], r"data.valid_list: .*b, line 3: shot 2 is listed before, in .*a;"),
        ([1, 200], [4], r"data.train_list: .*a, line 3: shot 200 is not in "),
        ([], [4], r"data.train_list: .*a: names no shot"),
        (["x"], [4], r"a, line 2: not a shot number: 'x'"),
    ],
)
def test_lists_with_mistakes(folder: Path, tmp_path: Path, train: list, valid: list, message: str) -> None:
    lists = {"train_list": write_list(tmp_path / "a", train), "valid_list": write_list(tmp_path / "b", valid)}
    with pytest.raises(UserError, match=message):
        shots(folder, **lists)


def test_other_mistakes_of_the_split(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere: cannot be read: No such file"):
        shots(folder, train_list="nowhere")
    with pytest.raises(UserError, match=r"data.test_fraction: splits without lists"):
        shots(folder, train_list=write_list(tmp_path / "a", [1, 2]), test_fraction=0.1)
    with pytest.raises(UserError, match=r"data.path: is empty"):
        open_dataset(Config(data=ShotsData(), model=DisruptionModel()))
    with pytest.raises(UserError, match=r"prepare it first: dist-mp data prepare"):
        shots(folder.parent / "raw")


def copied(folder: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("index.json", lambda raw: raw[:200], "not an index of prepared shots"),
        ("index.json", lambda raw: b"[]", "not an index of prepared shots"),
        ("index.json", lambda raw: b"\xff", "not an index of prepared shots"),
        ("index.json", lambda raw: raw.replace(b"shots 1", b"shots 9"), "its format is 'dist-mp shots 9'"),
        ("index.json", lambda raw: re.sub(rb'"steps": \d+', b'"steps": 1000000000', raw, count=1), "0.npy: cannot be"),
        ("index.json", lambda raw: raw.replace(b'"number": 1,', b'"number": 0,'), "a shot twice"),
        ("0.npy", lambda raw: raw[:-1], "0.npy: cannot be read"),
        ("0.npy", lambda raw: b"", "0.npy: cannot be read"),
        ("0.npy", lambda raw: b"PK" + raw, "0.npy: cannot be read"),
        ("0.npy", lambda raw: raw[:-4] + b"\0\0\xc0\x7f", "0.npy: holds a number that is not finite"),
        ("0.npy", lambda raw: re.sub(rb"\((\d+),", rb"(1000000000,", raw), "0.npy: cannot be read"),
        ("statistics.npy", lambda raw: raw[:100], "statistics.npy: cannot be read"),
    ],
)
def test_damaged_prepared_shots(folder: Path, tmp_path: Path, name: str, damage: object, message: str) -> None:
    copy = copied(folder, tmp_path)
    (copy / name).write_bytes(damage((copy / name).read_bytes()))  # type: ignore[operator]
    with pytest.raises(UserError, match=message) as caught:
        ProcessedShots(copy).shot(0)
    assert str(caught.value).isprintable()


def write_arrays(root: object, changes: dict[str, object] | None = None) -> None:
    """The same shot as :func:`files`, and shot 8 that disrupts at 0.17 s."""
    texts = files()
    for number, disruption in ((7, -1.0), (8, 0.17)):
        shot = root.create_group(str(number))  # type: ignore[attr-defined]
        shot.attrs["t_disrupt"] = disruption
        for name, text in texts.items():
            rows = np.array([line.split() for line in text.splitlines()], np.float64)
            arrays = {"time": rows[:, 0], "values": rows[:, 1]}
            if name == "te":
                half = len(rows) // 2
                arrays = {"time": rows[half:, 0], "values": rows[half:, 1:], "coordinates": rows[0, 1:]}
            group = shot.create_group(name)
            for key, value in (arrays | (changes or {}) if name == "bolo/total" else arrays).items():
                group.create_array(key, data=value) if hasattr(group, "create_array") else group.create_dataset(
                    key, data=value
                )


def open_store(folder: Path, kind: str) -> object:
    if kind == "h5":
        return h5py.File(folder / "shots.h5", "w")
    return zarr.open_group(str(folder / "shots.zarr"), mode="w")


@pytest.mark.parametrize("kind", ["h5", "zarr"])
def test_arrays_give_the_same_shots_as_text(tmp_path: Path, kind: str) -> None:
    _, text = prepared(write(tmp_path / "text", "7 -1\n8 0.17\n"), minimum_steps=20)
    arrays = tmp_path / "arrays"
    arrays.mkdir()
    write_machine(arrays, MACHINE)
    store = open_store(arrays, kind)
    write_arrays(store)
    if kind == "h5":
        store.close()  # type: ignore[attr-defined]
    _, same = prepared(arrays, minimum_steps=20)
    assert same.numbers.tolist() == text.numbers.tolist() == [7, 8]
    assert same.disruptive.tolist() == [False, True]
    for index in range(2):
        np.testing.assert_allclose(same.shot(index).features(), text.shot(index).features(), rtol=1e-6)


@pytest.mark.parametrize("kind", ["h5", "zarr"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"time": np.arange(3.0)}, r"shot 7: bolo: time \(3,\) and values \(300, 1\) do not belong together"),
        ({"values": np.full(300, np.nan)}, "shot 7: bolo: value is not a finite number in row 1"),
        ({"values": np.ones(300, complex)}, "shot 7: bolo: values: values of type complex128 are not real numbers"),
    ],
)
def test_bad_arrays_refuse_the_shot(tmp_path: Path, changes: dict[str, object], message: str, kind: str) -> None:
    write_machine(tmp_path, MACHINE)
    store = open_store(tmp_path, kind)
    write_arrays(store, changes)
    if kind == "h5":
        store.close()  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=message):
        prepare_shots(tmp_path, tmp_path / "out", minimum_steps=20)


def test_bad_stores_get_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_machine(tmp_path, MACHINE)
    path = tmp_path / "shots.h5"
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + b"x" * 100)
    with pytest.raises(UserError, match=r"shots.h5: cannot be opened with h5py"):
        prepare_shots(tmp_path, tmp_path / "out")
    with h5py.File(path, "w") as file:
        file.create_group("seven").attrs["t_disrupt"] = 1.0
    with pytest.raises(UserError, match=r"group 'seven': a shot is a group named by its number"):
        prepare_shots(tmp_path, tmp_path / "out")
    with h5py.File(path, "w") as file:
        file.create_group("7").attrs["t_disrupt"] = -3.0
    with pytest.raises(UserError, match=r"group '7': t_disrupt must be a time"):
        prepare_shots(tmp_path, tmp_path / "out")
    with h5py.File(path, "w"):
        pass
    with pytest.raises(UserError, match=r"shots.h5: holds no shots"):
        prepare_shots(tmp_path, tmp_path / "out")
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(UserError, match=r"needs the package h5py; pip install 'dist-mp\[formats\]'"):
        prepare_shots(tmp_path, tmp_path / "out")
    (tmp_path / "shots.zarr").mkdir()
    with pytest.raises(UserError, match=r"shots.h5 and shots.zarr"):
        prepare_shots(tmp_path, tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "shots.zarr: cannot be opened with zarr"),
        ({"zarr.json": b"{"}, "shots.zarr: cannot be opened with zarr"),
        ({"zarr.json": b"[]"}, "shots.zarr: cannot be opened with zarr"),
        ({"zarr.json": b'{"zarr_format": 9, "node_type": "group"}'}, "shots.zarr: cannot be opened with zarr"),
        ({"zarr.json": b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'}, "shots.zarr: holds no shots"),
    ],
)
def test_bad_zarr_folders_get_one_clear_line(tmp_path: Path, content: dict[str, bytes], message: str) -> None:
    write_machine(tmp_path, MACHINE)
    (tmp_path / "shots.zarr").mkdir()
    for name, raw in content.items():
        (tmp_path / "shots.zarr" / name).write_bytes(raw)
    with pytest.raises(UserError, match=message) as caught:
        prepare_shots(tmp_path, tmp_path / "out")
    assert str(caught.value).isprintable()


@given(
    gaps=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    begin=st.integers(-20, 60),
    steps=st.integers(1, 40),
    shift=st.integers(0, 30),
)
@settings(max_examples=150, deadline=None)
def test_resampling_is_the_last_value_known(gaps: list[int], begin: int, steps: int, shift: int) -> None:
    """Against a search by hand, in whole milliseconds; values are the numbers of the samples."""
    recorded = np.cumsum(gaps)
    recording = Recording(recorded / 1000.0, np.arange(len(gaps), dtype=np.float64)[:, None])
    grid = (begin + 3 * np.arange(steps)) / 1000.0
    found = resample(recording, grid, shift / 1000.0, 0)
    for t, value in zip((begin + 3 * np.arange(steps)).tolist(), found.tolist(), strict=True):
        known = [i for i, at in enumerate(recorded.tolist()) if at <= t - shift]
        assert value == (known[-1] if known else 0)


def test_byte_order_marks_and_line_ends_of_windows_are_fine(tmp_path: Path) -> None:
    plain = prepared(write(tmp_path / "plain", "7 -1\n8 0.17\n"), minimum_steps=20)[1]
    folder = write(tmp_path / "windows", "7 -1\n8 0.17\n")
    for path in (folder / "shot_list.txt", folder / "machine.yaml", *(folder / "signal_data").rglob("*.txt")):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    same = prepared(folder, minimum_steps=20)[1]
    assert same.numbers.tolist() == plain.numbers.tolist() == [7, 8]
    for index in range(2):
        np.testing.assert_array_equal(same.shot(index).features(), plain.shot(index).features())
