"""A configuration file and ``key=value`` overrides to a validated configuration; every mistake is one line."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import dist_mp
from dist_mp.config import Config
from dist_mp.errors import UserError
from dist_mp.settings import document
from dist_mp.settings.fields import Field, field_table

MAX_BYTES = 1 << 20
"""A larger file is no configuration."""


def bundled_configs() -> dict[str, Path]:
    """The configurations that come with dist_mp, by name."""
    folder = Path(dist_mp.__file__).parent / "configs"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_config(name: str) -> Path:
    """The file of that path; where there is none, the bundled configuration of that name.

    ``quickstart``, ``quickstart.yaml`` and ``configs/quickstart.yaml`` name the bundled one.
    """
    if name and Path(name).exists():
        return Path(name)
    bundled = bundled_configs()
    stem = name.removeprefix("configs/").removesuffix(".yaml")
    if stem in bundled:
        return bundled[stem]
    near = difflib.get_close_matches(stem, bundled, 1)
    hint = f"did you mean {near[0]}?" if near else f"bundled ones are {', '.join(bundled)}"
    raise UserError(f"no configuration {name!r}: {hint}")


def load(name: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration file (or a bundled one by name) and apply ``dotted.key=value`` overrides.

    A value is read as YAML; a text needs no quotes. An override of ``data.kind`` or ``model.kind`` starts that section
    afresh when it changes the kind, whatever its place among the overrides.

    Raises:
        UserError: file, line and key, what is wrong, and what would be right.
    """
    try:
        path = find_config(str(name))
        values, lines = _read(path)
        reader = _Reader(str(path), values, lines)
        for override in sorted(map(_split, overrides), key=lambda one: not one.key.endswith(".kind")):
            reader.apply(override)
        return reader.validate()
    except UserError as error:
        # The message quotes what the user wrote, which may hold anything; it must stay one line.
        line = "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(error))
        raise UserError(line) from error.__cause__


def dump(config: Config) -> str:
    """The configuration as YAML text that :func:`load` reads back as the same configuration."""
    return document.dump(config.model_dump())


def resolve_batch(config: Config, num_ranks: int) -> int:
    """The global batch: rows a worker and micro-batch x workers x accumulation.

    Raises:
        UserError: `train.global_batch` is given and differs, or virtual workers cannot be dealt to the ranks.
    """
    train = config.train
    workers, what = num_ranks, "ranks"
    if train.virtual_workers is not None:
        workers, what = train.virtual_workers, "virtual workers"
        if workers % num_ranks:
            raise UserError(
                f"train.virtual_workers: {workers} cannot be dealt evenly to {num_ranks} ranks; give a multiple of them"
            )
        if config.exchange.algorithm in ("native", "pieces"):
            raise UserError(
                f"exchange.algorithm: {config.exchange.algorithm} has no virtual workers; with train.virtual_workers "
                "give shared or auto"
            )
    product = train.batch_size * workers * train.accumulation
    if train.global_batch is not None and train.global_batch != product:
        raise UserError(
            f"train.global_batch: is {train.global_batch}, but train.batch_size {train.batch_size} x {workers} {what} "
            f"x train.accumulation {train.accumulation} = {product}; change one of them"
        )
    return product


def _read(path: Path) -> tuple[dict[str, Any], dict[document.Path, int]]:
    if not path.is_file():
        raise UserError(f"{path}: is not a file; name a YAML file")
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise UserError(f"{path}: larger than {MAX_BYTES} bytes; this is no configuration")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8") from error
    parsed = document.parse(text, str(path))
    if parsed.value is None:
        return {}, {}
    if not isinstance(parsed.value, dict):
        raise UserError(f"{path}:1: must hold `key: value` lines, got {_shown(parsed.value)}")
    return parsed.value, parsed.lines


@dataclass(frozen=True)
class _Override:
    key: str
    value: str

    def __str__(self) -> str:
        """The override as it was given, cut short where it is long."""
        return _short(f"{self.key}={self.value}")


def _split(text: str) -> _Override:
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise UserError(f"{text!r} is not a setting; write key=value, for example train.epochs=3")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{key}: the value is not UTF-8 text") from error
    return _Override(key, value.strip())


class _Reader:
    """The values of a file, changed by overrides, and where each came from."""

    def __init__(self, file: str, values: dict[str, Any], lines: dict[document.Path, int]) -> None:
        self._file = file
        self._values = copy.deepcopy(values)
        self._lines = lines
        self._given: dict[str, _Override] = {}
        self._table = field_table()
        if "model" in self._values:
            self._values["model"] = _own_model(self._values["model"])
        for section, kinds in self._table.kinds.items():
            if isinstance(self._values.setdefault(section, {}), dict):
                self._values[section].setdefault("kind", kinds[0])

    def _kinds(self) -> dict[str, str]:
        """The kind of each section that comes in several, as far as it is a possible one."""
        kinds = {}
        for section, choices in self._table.kinds.items():
            values = self._values[section]
            kind = values.get("kind") if isinstance(values, dict) else None
            kinds[section] = kind if kind in choices else choices[0]
        return kinds

    def apply(self, override: _Override) -> None:
        """Set one key."""
        kinds = self._kinds()
        field = self._table.valid(kinds).get(override.key)
        if field is None and override.key not in self._table.sections:
            raise UserError(f"{override}: no such setting; {self._table.hint(override.key, kinds)}")
        value = _value(override, field)
        if override.key == "model":
            value = _own_model(value)
        *above, last = override.key.split(".")
        section = self._values
        for depth, name in enumerate(above):
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise UserError(self._not_a_section(".".join(above[: depth + 1]), section))
        if last == "kind" and section.get("kind") != value:
            section.clear()
        if override.key in self._table.kinds and isinstance(value, dict):
            value.setdefault("kind", kinds[override.key])
        section[last] = value
        self._given[override.key] = override

    def validate(self) -> Config:
        """The configuration, or the first mistake as a UserError."""
        for section, kinds in self._table.kinds.items():
            kind = self._values[section].get("kind") if isinstance(self._values[section], dict) else kinds[0]
            if kind not in kinds:
                key = f"{section}.kind"
                raise UserError(f"{self._where(key)}: must be one of {', '.join(kinds)}, got {_shown(kind)}")
        try:
            config = Config.model_validate(self._values)
        except ValidationError as error:
            problems = [(self._key(problem["loc"]), problem) for problem in error.errors(include_url=False)]
            problems.sort(key=lambda item: self._line(item[0]) or 0)
            key, problem = problems[0]
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise UserError(f"{self._where(key)}: {self._explain(key, problem)}{more}") from error
        for path in self._table.valid(self._kinds()):
            text = _get(config, path)
            if isinstance(text, str) and not text.isprintable():
                raise UserError(f"{self._where(path)}: must be printable text, got {_shown(text)}")
        return config

    def _key(self, location: Sequence[str | int]) -> str:
        """The dotted key of an error's location, which names the chosen kind after a section of several.

        A place in a list is left out: the key is that of the list.
        """
        names = [str(part) for part in location if not isinstance(part, int)]
        if len(names) > 1 and names[0] in self._table.kinds:
            del names[1]
        return ".".join(names)

    def _line(self, key: str) -> int | None:
        return self._lines.get(tuple(key.split("."))) if key else None

    def _where(self, key: str) -> str:
        """Where a key was set: its override, or file, line and key."""
        if key in self._given:
            return str(self._given[key])
        if key and any(given.startswith(f"{key}.") or key.startswith(f"{given}.") for given in self._given):
            return key
        line = self._line(key)
        return ": ".join(filter(None, [f"{self._file}:{line}" if line else self._file, key]))

    def _explain(self, key: str, problem: Mapping[str, Any]) -> str:
        got = problem["input"]
        if problem["type"] == "extra_forbidden":
            return f"no such setting; {self._table.hint(key, self._kinds())}"
        if problem["type"] == "value_error":
            return str(problem["ctx"]["error"])
        field = self._table.valid(self._kinds()).get(key)
        if field is not None:
            hint = "; it must be finite" if problem["type"] == "finite_number" else ""
            if field.type.startswith("true or false") and str(got).lower() in ("on", "off", "yes", "no"):
                hint = f"; write {'true' if str(got).lower() in ('on', 'yes') else 'false'}"
            elif "enum" in field.schema and (near := difflib.get_close_matches(str(got), field.schema["enum"], 1)):
                hint = f"; did you mean {near[0]}?"
            elif field.type.startswith("text") and not isinstance(got, (str, dict, list)):
                hint = "; put it in quotes"
            return f"must be {_article(field.type)}, got {_shown(got)}{hint}"
        if key in self._table.sections:
            return self._section_problem(key, got)
        return f"{problem['msg']}, got {_shown(got)}"

    def _not_a_section(self, key: str, got: object) -> str:
        return f"{self._where(key)}: {self._section_problem(key, got)}"

    def _section_problem(self, key: str, got: object) -> str:
        return f"must be a section with `key: value` lines of its own, got {_shown(got)}"


def _own_model(value: Any) -> Any:
    """The section that ``model: package.module:function`` stands for; anything else as it is."""
    return {"kind": "python", "function": value} if isinstance(value, str) and ":" in value else value


def _value(override: _Override, field: Field | None) -> Any:
    """The value of an override: YAML, but a text field takes what is not quoted as it stands."""
    if field is not None and field.is_text:
        if field.nullable and override.value == "null":
            return None
        if not override.value.startswith(("'", '"')):
            return override.value
    return document.parse(override.value, str(override), lines=False).value


def _get(config: Config, path: str) -> Any:
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _article(type_text: str) -> str:
    """``an integer``, ``a number``; texts and choices stand alone."""
    return {"i": "an ", "n": "a ", "l": "a "}.get(type_text[0], "") + type_text


def _shown(value: object) -> str:
    """A value as one short piece of text."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    try:
        text = repr(value)
    except ValueError:  # an integer of too many digits for Python to print
        text = "a very large number"
    return _short(text)


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
