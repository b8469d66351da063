"""How the files of a tokamak's shots lie in a folder: the layout of FRNN, described by one YAML file.

    FOLDER/machine.yaml                                 this description
    FOLDER/shot_list.txt                                a shot a line: number and time of disruption (s), -1 if clean
    FOLDER/signal_data/MACHINE/SIGNAL_FOLDER/SHOT.txt   column 0 time (s), then the channel

The signals may also be arrays in one file; :mod:`dist_mp.data.recordings` describes both.
"""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError

from dist_mp.data.shot import Signal
from dist_mp.errors import UserError

DESCRIPTION = "machine.yaml"
SHOT_LIST = "shot_list.txt"


# Times and thresholds are not strict: YAML 1.1, as PyYAML reads it, takes 1e5 for a text.


class SignalFile(BaseModel):
    """One diagnostic and where its files are."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    name: str = Field(pattern=r"^[A-Za-z0-9_]+$", description="short name")
    folder: str = Field(pattern=r"^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$", description="folder under signal_data/MACHINE")
    unit: str = Field("", description="unit of its values")
    meaning: str = Field("", description="what it measures")
    shift_milliseconds: NonNegativeFloat = Field(
        0.0,
        strict=False,
        description="delay until a value is known to the predictor; the signal is moved later by it (ms)",
    )

    @property
    def signal(self) -> Signal:
        """Name, unit and meaning."""
        return Signal(self.name, self.unit, self.meaning)


class Machine(BaseModel):
    """A tokamak's signals."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    name: str = Field(pattern=r"^[A-Za-z0-9_-]+$", description="folder under signal_data")
    step_milliseconds: PositiveFloat = Field(
        1.0, strict=False, description="all signals are resampled to this step (ms)"
    )
    profile_points: PositiveInt = Field(64, description="profiles are interpolated to so many points on [0, 1]")
    current: str = Field("ip", description="the scalar signal that bounds a shot: the plasma current")
    current_threshold: PositiveFloat = Field(
        1e5, strict=False, description="a shot lasts while the current's magnitude is above this (unit of the signal)"
    )
    scalars: list[SignalFile] = Field(min_length=1, description="0D signals")
    profiles: list[SignalFile] = Field(default_factory=list, description="1D signals")


def read_machine(folder: Path) -> Machine:
    """The description of a folder of shots."""
    path = folder / DESCRIPTION
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
        machine = Machine.model_validate(content)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; it describes the signals of a machine") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        problem = "no such key" if first["type"] == "extra_forbidden" else first["msg"]
        raise UserError(f"{path}: {where}: {problem}") from error
    names = [signal.name for signal in machine.scalars + machine.profiles]
    if len(set(names)) != len(names):
        raise UserError(f"{path}: signal {next(n for n in names if names.count(n) > 1)!r} is named twice")
    if machine.current not in [signal.name for signal in machine.scalars]:
        raise UserError(f"{path}: current: no scalar signal is named {machine.current!r}")
    return machine


def write_machine(folder: Path, machine: Machine) -> None:
    """Write the description that :func:`read_machine` reads."""
    text = yaml.safe_dump(machine.model_dump(), sort_keys=False, allow_unicode=True)
    (folder / DESCRIPTION).write_text(text, encoding="utf-8")


def shot_time(time: float) -> bool:
    """Whether this may be the time of a disruption (s), or the -1 of a clean shot."""
    return time == -1 or 0 < time < 1e9


def read_shot_list(path: Path) -> dict[int, float]:
    """Time of disruption (s) by shot number, -1 where the shot is clean; comments begin with #."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; it lists a shot a line") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; a shot list is text") from error
    shots: dict[int, float] = {}
    for number, line in enumerate(lines, 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        try:
            shot, time = int(words[0]), float(words[1])
            valid = len(words) == 2 and shot >= 0 and shot_time(time)
        except (ValueError, IndexError):
            valid = False
        if not valid:
            raise UserError(
                f"{path}, line {number}: needs a shot number and a time of disruption (s, -1 if clean): {line[:60]!r}"
            )
        if shot in shots:
            raise UserError(f"{path}, line {number}: shot {shot} is listed twice")
        shots[shot] = time
    if not shots:
        raise UserError(f"{path}: lists no shots")
    return shots
