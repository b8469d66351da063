"""Every setting with its type, unit, default and description, read from the schema of the configuration."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dist_mp.config import Config

_UNIT = re.compile(r"\((steps|time steps|epochs|MiB|bytes|seconds)\)$")


@dataclass(frozen=True)
class Field:
    """One setting."""

    path: str
    """Dotted path, as on the command line."""
    kind: str
    """The value of its section's `kind` that it belongs to; empty where there is no choice."""
    type: str
    """What is allowed, in words."""
    default: Any
    unit: str
    description: str
    schema: Mapping[str, Any]
    """Its JSON schema."""

    @property
    def section(self) -> str:
        """The dotted path of the section it lies in; empty at the top."""
        return self.path.rpartition(".")[0]

    @property
    def is_text(self) -> bool:
        """Whether its values are free text or names, which need no quotes on the command line."""
        return _leaf(self.schema).get("type") == "string"

    @property
    def nullable(self) -> bool:
        """Whether `null` is allowed."""
        return any(choice.get("type") == "null" for choice in self.schema.get("anyOf", ()))


class FieldTable:
    """All settings, in the order of the schema."""

    def __init__(self) -> None:
        schema = Config.model_json_schema()
        self._definitions = schema.get("$defs", {})
        self.fields: list[Field] = []
        self.kinds: dict[str, list[str]] = {}
        """Sections that come in several kinds, with the kinds; the first is the default."""
        self.sections: list[str] = []
        self._walk(schema, "", "")

    def _walk(self, schema: Mapping[str, Any], prefix: str, kind: str) -> None:
        for name, entry in schema["properties"].items():
            path = f"{prefix}.{name}" if prefix else name
            if "discriminator" in entry:
                mapping = entry["discriminator"]["mapping"]
                default: str = getattr(Config(), path).kind
                self.sections.append(path)
                self.kinds[path] = [default, *sorted(set(mapping) - {default})]
                choices = {"enum": self.kinds[path], "type": "string"}
                what = f"what {path} is; it decides the other keys of {path}"
                self.fields.append(Field(f"{path}.kind", "", type_text(choices), default, "", what, choices))
                for choice in self.kinds[path]:
                    self._walk(self._resolve({"$ref": mapping[choice]}), path, choice)
            elif "properties" in (section := self._resolve(entry)):
                self.sections.append(path)
                self._walk(section, path, kind)
            elif "const" not in entry:
                self.fields.append(self._field(path, kind, entry))

    def _field(self, path: str, kind: str, entry: Mapping[str, Any]) -> Field:
        description = entry.get("description", "")
        unit = _UNIT.search(description)
        if unit:
            description = description[: unit.start()].strip()
        words = unit.group(1) if unit else ""
        return Field(path, kind, type_text(entry), entry.get("default"), words, description, entry)

    def _resolve(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        if "$ref" in entry:
            resolved: Mapping[str, Any] = self._definitions[entry["$ref"].rpartition("/")[2]]
            return resolved
        return entry

    def valid(self, kinds: Mapping[str, str]) -> dict[str, Field]:
        """The settings that exist where the sections are of these kinds, by path."""
        return {f.path: f for f in self.fields if not f.kind or f.kind == kinds.get(f.section)}

    def hint(self, path: str, kinds: Mapping[str, str]) -> str:
        """What to write instead of an unknown path."""
        valid = self.valid(kinds)
        others = [other for other in self.fields if other.path == path]
        if others:
            section, needs = others[0].section, " or ".join(sorted(other.kind for other in others))
            return f"it needs {section}.kind {needs}, which is {kinds[section]}"
        known = [*valid, *self.sections]
        section, _, name = path.rpartition(".")
        siblings = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == section}
        names: dict[str, str] = {}
        for known_path in known:
            names.setdefault(known_path.rpartition(".")[2], known_path)
        near = (
            [siblings[close] for close in difflib.get_close_matches(name, siblings, 1)]
            or difflib.get_close_matches(path, known, 1, cutoff=0.8)
            or ([names[name]] if name in names else [])
            or difflib.get_close_matches(path, known, 1)
            or [names[close] for close in difflib.get_close_matches(name, names, 1)]
        )
        if near:
            return f"did you mean {near[0]}?"
        if section in self.sections:
            return f"{section} has {', '.join(siblings)}"
        top = [known_path for known_path in known if "." not in known_path]
        return f"there are {', '.join(top)}; `dist-mp config fields` lists all"


@functools.cache
def field_table() -> FieldTable:
    """The settings; the schema is read once."""
    return FieldTable()


def _leaf(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a value that is not null."""
    for choice in schema.get("anyOf", ()):
        if choice.get("type") != "null":
            leaf: Mapping[str, Any] = choice
            return leaf
    return schema


def type_text(schema: Mapping[str, Any]) -> str:
    """What a schema allows, in words: ``integer > 0 or null``."""
    if "anyOf" in schema:
        return " or ".join(type_text(choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if schema.get("type") == "array":
        kind, _, limits = type_text(schema["items"]).partition(" ")
        return f"list of {kind}s {limits}".strip()
    if "pattern" in schema:
        return f"text that matches {schema['pattern']}"
    words = {"integer": "integer", "number": "number", "boolean": "true or false", "string": "text", "null": "null"}
    bounds = [
        f"{sign} {schema[key]:g}"
        for key, sign in (("exclusiveMinimum", ">"), ("minimum", ">="), ("exclusiveMaximum", "<"), ("maximum", "<="))
        if key in schema
    ]
    return " ".join([words[schema["type"]], " and ".join(bounds)]).strip()


def field_rows() -> list[Field]:
    """All settings for a reader: descriptions end without a full stop, defaults as YAML writes them."""
    return [replace(field, description=field.description.rstrip(".")) for field in field_table().fields]
