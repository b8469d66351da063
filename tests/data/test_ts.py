"""The `.ts` format: series of unequal length, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from dist_mp.data.ts import SeriesDataset, read_ts
from dist_mp.errors import UserError

VOWELS = Path(__file__).resolve().parents[2].parent / "shared/data/japanese_vowels"

HEADER = """#A comment
@problemName Test
@timestamps false
@dimensions 2
@equalLength false
@classLabel true A b
@data
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_series_of_unequal_length_and_missing_values(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ts", HEADER + "1,2,3:4,5,6:A\n\n# between\n?,7.5,?:-1e2,?,3:b\n9:8:A\n")
    file = read_ts(path)
    assert file.classes == ("A", "b")
    assert file.labels.tolist() == [0, 1, 0]
    assert [s.tolist() for s in file.series] == [[[1, 4], [2, 5], [3, 6]], [[0, -100], [7.5, -100], [7.5, 3]], [[9, 8]]]
    assert file.missing == 3
    assert all(s.dtype == np.float32 for s in file.series)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no @data line"),
        ("1,2:A\n", "no @data line"),
        (HEADER, "no series after @data"),
        (HEADER.replace("true A b", "false"), "needs '@classLabel true'"),
        (HEADER.replace("@timestamps false", "@timeStamps true"), "@timeStamps true is not supported"),
        (HEADER + "1,2:3,4:C\n", "line 8: class 'C' is not among @classLabel A b"),
        (HEADER + "A\n", "line 8: no values before the class"),
        (HEADER + "1,2:3,4:A\n1,x:3,4:A\n", "line 9, channel 1: could not convert"),
        (HEADER + "1,2:3,,4:A\n", "line 8, channel 2: could not convert"),
        (HEADER + "1,2:3:A\n", r"line 8: channels of different lengths \[1, 2\]"),
        (HEADER + "1,inf:3,4:A\n", "line 8: an infinite value"),
        (HEADER + "1,1e300:3,4:A\n", "line 8: a value beyond the range of 32-bit numbers"),
        (HEADER + "1,2:3,4:A\n1,2:A\n", "line 9: 1 channels, but 2 before it"),
    ],
)
def test_bad_files_get_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read_ts(write(tmp_path / "bad.ts", text))
    assert "\n" not in str(caught.value)
    assert "bad.ts" in str(caught.value)


def test_a_single_class_is_refused(tmp_path: Path) -> None:
    text = HEADER.replace("A b", "A") + "1,2:3,4:A\n" * 4
    for part in ("TRAIN", "TEST"):
        write(tmp_path / f"One_{part}.ts", text)
    with pytest.raises(UserError, match=r"One_TRAIN.ts: a single class, 'A'; a classifier needs two"):
        SeriesDataset(tmp_path / "One_TRAIN.ts")


def test_what_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.ts").write_bytes(b"@data\n\xff\xfe1,2:A")
    with pytest.raises(UserError, match="byte 6 is not UTF-8"):
        read_ts(tmp_path / "x.ts")
    with pytest.raises(UserError, match=r"no.ts: cannot be read: No such file"):
        read_ts(tmp_path / "no.ts")


def random_series(count: int, seed: int) -> str:
    rng = np.random.default_rng(seed)
    lines = []
    for number in range(count):
        values = rng.normal([5.0, -3.0], [2.0, 0.1], (int(rng.integers(2, 9)), 2)).round(4)
        lines.append(":".join(",".join(map(str, channel)) for channel in values.T) + ":" + "Ab"[number % 2])
    return HEADER + "\n".join(lines) + "\n"


def test_dataset_scales_by_training_series_only(tmp_path: Path) -> None:
    path = write(tmp_path / "Some_TRAIN.ts", random_series(40, 1))
    write(tmp_path / "Some_TEST.ts", random_series(20, 2).replace("5.", "500."))
    dataset = SeriesDataset(path, validation_fraction=0.25)
    assert [len(s.labels) for s in (dataset.train, dataset.valid, dataset.test)] == [30, 10, 20]
    steps = np.concatenate(dataset.train.sequences)
    np.testing.assert_allclose(steps.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(steps.std(axis=0), 1.0, atol=1e-5)
    assert np.concatenate(dataset.test.sequences)[:, 0].max() > 50
    assert (dataset.spec.channels, dataset.spec.classes) == (2, 2)
    assert "30 / 10 / 20 series" in dataset.describe()


def test_files_that_do_not_fit_together(tmp_path: Path) -> None:
    path = write(tmp_path / "Some_TRAIN.ts", random_series(10, 1))
    with pytest.raises(UserError, match=r"Some_TEST.ts: cannot be read"):
        SeriesDataset(path)
    write(tmp_path / "Some_TEST.ts", random_series(10, 1).replace("true A b", "true b A"))
    with pytest.raises(UserError, match=r"Some_TEST.ts: its classes differ"):
        SeriesDataset(path)
    write(tmp_path / "Some_TRAIN.ts", HEADER + "1,2:3,4:A\n" * 9)
    write(tmp_path / "Some_TEST.ts", random_series(10, 1))
    with pytest.raises(UserError, match=r"Some_TRAIN.ts: no series of class 'b', which its header names"):
        SeriesDataset(path)
    write(tmp_path / "Some_TRAIN.ts", random_series(10, 1))
    write(tmp_path / "Some_TEST.ts", HEADER + "1,2:A\n")
    with pytest.raises(UserError, match=r"Some_TEST.ts: 1 channels, but 2 in Some_TRAIN.ts"):
        SeriesDataset(path)
    with pytest.raises(UserError, match=r"ends in _TRAIN.ts"):
        SeriesDataset(tmp_path / "Some_TEST.ts")


@pytest.mark.skipif(not VOWELS.is_dir(), reason="the Japanese vowels are not beside this checkout (../shared/data)")
@pytest.mark.parametrize("name", ["JapaneseVowels_TRAIN.ts", "JapaneseVowels_eq_TRAIN.ts"])
def test_the_japanese_vowels(name: str) -> None:
    dataset = SeriesDataset(VOWELS / name)
    assert len(dataset.train.labels) + len(dataset.valid.labels) == 270
    assert len(dataset.test.labels) == 370
    assert dataset.spec.channels == 12
    assert dataset.spec.classes == 9
