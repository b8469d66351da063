"""FRNN's processed shots: their pickles are read as data, and hostile ones are refused without running."""

import io
import os
import pickle
import sys
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dist_mp.data.data_pickle import as_array, unpickle
from dist_mp.data.frnn import import_frnn
from dist_mp.data.processed import ProcessedShots
from dist_mp.errors import UserError


@pytest.fixture
def plasma() -> Iterator[types.ModuleType]:
    """A module named as FRNN's, with a class of the same name and attributes; gone when the files are read."""
    module = types.ModuleType("plasma.primitives.data")

    class Signal:
        def __init__(self, description: str, **attributes: object) -> None:
            self.description = description
            self.__dict__.update(attributes)

        def __hash__(self) -> int:
            return hash(self.description)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Signal) and self.description == other.description

    Signal.__module__, Signal.__qualname__ = "plasma.primitives.data", "Signal"
    module.Signal = Signal  # type: ignore[attr-defined]
    names = ("plasma", "plasma.primitives", "plasma.primitives.data")
    sys.modules |= dict.fromkeys(names, module)
    yield module
    for name in names:
        sys.modules.pop(name, None)


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "plasma"]:
        del sys.modules[name]


def values(number: int, steps: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(number)
    return {
        "plasma current": rng.normal(number, 1.0, (steps, 1)),
        "Locked mode amplitude": rng.normal(-number, 1.0, (steps, 1)).astype(np.float32),
        "Electron temperature profile": rng.normal(2.0, 1.0, (steps, 4)),
    }


def write_npz(
    path: Path, module: types.ModuleType, number: int, disruptive: bool, steps: int = 130, **changes: object
) -> None:
    signals = {
        module.Signal(name, paths=["a/b"], machines=[], causal_shifts=[0.0], is_ip="current" in name): array
        for name, array in values(number, steps).items()
    }
    left = np.arange(steps - 1, -1, -1) * 0.001 if disruptive else np.full(steps, 1000.0)
    content = {
        "valid": True,
        "is_disruptive": disruptive,
        "signals_dict": signals,
        "ttd": np.log10(left + 0.0001),
    } | changes
    np.savez(path, **content)  # type: ignore[arg-type]


def test_shots_come_over_without_their_code(tmp_path: Path, plasma: types.ModuleType) -> None:
    for number, disruptive in ((40, True), (7, False), (123, True)):
        write_npz(tmp_path / f"jet_{number}.npz", plasma, number, disruptive, 110 + number)
    forget()
    result = import_frnn(tmp_path, tmp_path / "out")
    assert (result.kept, result.refused) == (3, {})
    source = ProcessedShots(tmp_path / "out")
    assert source.numbers.tolist() == [7, 40, 123]
    assert source.disruptive.tolist() == [False, True, True]
    assert [s.name for s in source.scalar_signals] == ["plasma_current", "locked_mode_amplitude"]
    assert [s.name for s in source.profile_signals] == ["electron_temperature_profile"]
    assert source.profile_points == 4
    for index, number in enumerate((7, 40, 123)):
        expected = np.concatenate(list(values(number, 110 + number).values()), axis=1).astype(np.float32)
        np.testing.assert_array_equal(source.shot(index).features(), expected)
    trusted = import_frnn(tmp_path, tmp_path / "trusted", trust_pickle=True)
    assert trusted.kept == 3
    for index in range(3):
        left, right = (ProcessedShots(tmp_path / name).shot(index) for name in ("out", "trusted"))
        np.testing.assert_array_equal(left.features(), right.features())


def test_what_is_refused_is_reported(tmp_path: Path, plasma: types.ModuleType) -> None:
    write_npz(tmp_path / "jet_1.npz", plasma, 1, True)
    write_npz(tmp_path / "jet_2.npz", plasma, 2, False, valid=False)
    write_npz(tmp_path / "jet_3.npz", plasma, 3, False, steps=50)
    write_npz(tmp_path / "jet_4.npz", plasma, 4, False, ttd=np.zeros(5))
    write_npz(tmp_path / "jet_5.npz", plasma, 5, True, ttd=np.log10(np.arange(129, -1, -1) * 0.01 + 0.001))
    write_npz(tmp_path / "jet_6.npz", plasma, 6, False, signals_dict={"plasma current": np.ones((130, 1))})
    write_npz(tmp_path / "jet_7.npz", plasma, 7, False, signals_dict={"x": np.full((130, 1), np.nan)})
    write_npz(tmp_path / "jet_8.npz", plasma, 8, False, signals_dict=[1, 2])
    (tmp_path / "jet_9.npz").write_bytes((tmp_path / "jet_1.npz").read_bytes()[:-40])
    (tmp_path / "jet_10.npz").write_bytes(b"not a zip file")
    flat = values(11, 130) | {"Locked mode amplitude": np.full((130, 1), 2.5)}
    write_npz(tmp_path / "jet_11.npz", plasma, 11, False, signals_dict=flat)
    gone = values(12, 130) | {"Locked mode amplitude": np.zeros((130, 1))}
    write_npz(tmp_path / "jet_12.npz", plasma, 12, False, signals_dict=gone)
    write_npz(tmp_path / "jet_13.npz", plasma, 13, False, signals_dict={1: np.ones((130, 1))})
    forget()
    result = import_frnn(tmp_path, tmp_path / "out")
    assert result.kept == 2
    assert ProcessedShots(tmp_path / "out").missing.tolist() == [[False] * 3, [False, True, False]]
    reasons = {n: "; ".join(f"{k}: {v}" if k else v for k, v in r.items()) for n, r in result.refused.items()}
    starts = {
        2: "FRNN marks it as not valid",
        3: "50 steps are too few",
        4: "signals and ttd have different numbers of steps",
        5: "its steps are of 10 ms by its ttd, not of 1 ms",
        6: "its signals differ from those of the first shot: electron_temperature_profile, locked_mode_amplitude",
        7: "x: a value is not a finite number",
        8: "not a processed shot (signals_dict is not a dictionary",
        9: "not a processed shot (",
        10: "not a processed shot (",
        11: "locked_mode_amplitude: flat during the whole shot",
        13: "not a processed shot (signals_dict has a key that is neither a text nor a Signal",
    }
    assert reasons.keys() == starts.keys()
    for number, start in starts.items():
        assert reasons[number].startswith(start)
        assert reasons[number].isprintable()


class Touch:
    """A pickle that makes a file where it is run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mknod, (str(self.path),)


def test_a_pickle_is_run_only_when_it_is_trusted(tmp_path: Path, plasma: types.ModuleType) -> None:
    mark = tmp_path / "mark"
    write_npz(tmp_path / "jet_1.npz", plasma, 1, True, signals_dict={"x": Touch(mark)})
    forget()
    with pytest.raises(UserError, match=r"shot 1: its pickle is not read: it wants to use posix.mknod; --trust-pickle"):
        import_frnn(tmp_path, tmp_path / "out")
    assert not mark.exists()
    with pytest.raises(UserError, match="none of 1 shots can be used"):
        import_frnn(tmp_path, tmp_path / "out", trust_pickle=True)
    assert mark.exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "code",
    [
        b"cbuiltins\neval\n(V1+1\ntR.",
        b"cos\nsystem\n(Vtrue\ntR.",
        b"cnumpy.f2py.crackfortran\nmyeval\n(V1\ntR.",
        b"cnumpy.testing._private.utils\nrunstring\n(V1\n}tR.",
        b"cnumpy\nload\n(V/etc/passwd\ntR.",
        b"ccopyreg\n_reconstructor\n(cbuiltins\nlist\nNNtR.",
        b"c_codecs\nencode\n(I1\nVlatin1\ntR.",
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.",
        b"\x80\x02}\x80\x02",
        b"P1\n.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"r\xff\xff\xff\xff.",
        b"]" * 50 + b"a" * 49 + b"e" * 5,
        b"",
        b"hello",
    ],
)
def test_hostile_pickles_end_in_one_error(code: bytes) -> None:
    with pytest.raises(pickle.UnpicklingError):
        unpickle(code, ("plasma",), trust=False)


@pytest.mark.parametrize("protocol", range(5))
def test_plain_data_of_every_protocol(protocol: int) -> None:
    data = {"a": [1, 2.5, None, True], "b": np.arange(6.0).reshape(2, 3), "c": np.arange(4, dtype=">i2"), "d": b"\xff"}
    data["f"] = np.asfortranarray(data["b"])
    data["s"] = np.float32(1.5)
    read = unpickle(pickle.dumps(data, protocol), (), trust=False)
    assert read["a"] == data["a"]
    assert (read["d"], read["s"]) == (b"\xff", np.float32(1.5))
    for key in "bcf":
        np.testing.assert_array_equal(read[key].array, data[key])


def test_arrays_of_objects_and_texts_are_refused() -> None:
    for array in (np.array([{}, []], object), np.array(["text"]), np.zeros(2, [("a", "i4")])):
        with pytest.raises(pickle.UnpicklingError):
            as_array(unpickle(pickle.dumps(array), (), trust=False))


def test_names_and_sizes(tmp_path: Path, plasma: types.ModuleType) -> None:
    with pytest.raises(UserError, match="no such folder"):
        import_frnn(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(UserError, match=r"holds no \.npz files"):
        import_frnn(tmp_path, tmp_path / "out")
    write_npz(tmp_path / "jet_1.npz", plasma, 1, True)
    write_npz(tmp_path / "d3d_1.npz", plasma, 1, True)
    with pytest.raises(UserError, match=r"jet_1.npz: shot 1 is also in d3d_1.npz; import one machine at a time"):
        import_frnn(tmp_path, tmp_path / "out")
    (tmp_path / "d3d_1.npz").rename(tmp_path / "normalization.npz")
    with pytest.raises(UserError, match=r"normalization.npz: its name has no shot number"):
        import_frnn(tmp_path, tmp_path / "out")


def test_a_header_that_announces_too_much(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
    with zipfile.ZipFile(tmp_path / "jet_1.npz", "w") as archive:
        for name in ("valid", "is_disruptive", "ttd", "signals_dict"):
            archive.writestr(f"{name}.npy", header.getvalue())
    with pytest.raises(UserError, match=r"shot 1: not a processed shot"):
        import_frnn(tmp_path, tmp_path / "out")
