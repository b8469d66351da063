"""YAML text to plain values, with the line of every key.

Scalars follow the core schema of YAML 1.2, where ``1e-3`` is a number and ``on``, ``no`` and ``2024-01-01`` are text;
PyYAML's own rules are those of YAML 1.1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from dist_mp.errors import UserError

MAX_NODES = 10_000
"""A file with more keys and values than this is no configuration (aliases can multiply)."""

Path = tuple[str | int, ...]

_CORE_SCHEMA = (
    ("tag:yaml.org,2002:null", r"(?:~|null|Null|NULL|)", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"(?:true|True|TRUE|false|False|FALSE)", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))",
        list("-+0123456789."),
    ),
)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}


class _Dumper(yaml.SafeDumper):
    """Quotes a text that either YAML 1.1 or the core schema would read as something else."""


def _int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    return int(str(loader.construct_scalar(node)), 10)


def _float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    text = str(loader.construct_scalar(node)).lower()
    if text == ".nan":
        return math.nan
    return float(text.replace(".inf", "inf"))


for _tag, _pattern, _first in _CORE_SCHEMA:
    _Loader.add_implicit_resolver(_tag, re.compile(f"^{_pattern}$"), _first)
    _Dumper.add_implicit_resolver(_tag, re.compile(f"^{_pattern}$"), _first)
_Dumper.add_representer(
    list, lambda dumper, items: dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)
)
_Loader.add_constructor("tag:yaml.org,2002:int", _int)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)


@dataclass(frozen=True)
class Document:
    """What a YAML text holds."""

    value: Any
    lines: dict[Path, int]
    """Line of each key, counted from 1, by its path."""


def parse(text: str, where: str, *, lines: bool = True) -> Document:
    """Read one YAML document.

    Raises:
        UserError: not YAML, more than one document, a key twice; the message starts with `where`, and with the line
                if `lines` is true.
    """
    loader = None
    try:
        loader = _Loader(text)  # checks the characters of the text
        node = loader.get_single_node()
        if node is None:
            return Document(None, {})
        builder = _Builder(loader, where, lines)
        return Document(builder.build(node, ()), builder.lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark and lines else ""
        raise UserError(f"{where}{line}: not valid YAML: {_one_line(error.problem or error.context)}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{where}: not valid YAML: {_one_line(str(error))}") from error
    except RecursionError as error:
        raise UserError(f"{where}: not valid YAML: nested too deeply") from error
    finally:
        if loader is not None:
            loader.dispose()


def dump(values: Mapping[str, Any]) -> str:
    """YAML text that :func:`parse` reads back as the same values."""
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def scalar_text(value: object) -> str:
    """One value as YAML writes it."""
    return dump({"value": value}).removeprefix("value:").strip()


class _Builder:
    """Turns nodes into values and remembers lines."""

    def __init__(self, loader: _Loader, where: str, show_lines: bool) -> None:
        self._loader = loader
        self._where = where
        self._show_lines = show_lines
        self._nodes = 0
        self._open: set[int] = set()
        self.lines: dict[Path, int] = {}

    def build(self, node: yaml.Node, path: Path) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise UserError(f"{self._where}: more than {MAX_NODES} keys and values; this is no configuration")
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            try:
                return self._loader.construct_object(node)
            except ValueError as error:
                raise self._error(node, f"not a value: {node.value[:20]}...") from error
        if id(node) in self._open:
            raise self._error(node, "an alias that holds itself")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            return [self.build(child, (*path, index)) for index, child in enumerate(node.value)]
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(key_node, "a key must be plain text")
            key = key_node.value
            line = key_node.start_mark.line + 1
            if key in values:
                name = ".".join(map(str, (*path, key)))
                raise self._error(key_node, f"{name}: given twice, first on line {first[key]}; keep one")
            first[key] = line
            self.lines[(*path, key)] = line
            values[key] = self.build(value_node, (*path, key))
        return values

    def _error(self, node: yaml.Node, problem: str) -> UserError:
        line = f":{node.start_mark.line + 1}" if self._show_lines else ""
        return UserError(f"{self._where}{line}: {problem}")


def _one_line(text: str | None) -> str:
    return " ".join((text or "unreadable").split())
