"""Files and overrides to a configuration, and what each mistake is answered with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from dist_mp import settings
from dist_mp.config import Config
from dist_mp.errors import UserError
from dist_mp.settings.fields import Field, field_table

FIELDS = field_table()


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Write a configuration file and return its path."""

    def write_file(text: str | bytes) -> Path:
        path = tmp_path / "c.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_file


def mistake(path: str | Path, *overrides: str) -> str:
    """The line that a mistake is answered with."""
    with pytest.raises(UserError) as caught:
        settings.load(path, overrides)
    line = str(caught.value)
    assert line.isprintable(), f"more than one line: {line!r}"
    return line


def test_empty_file_is_all_defaults(write: Any) -> None:
    assert settings.load(write("")) == Config() == settings.load(write("# nothing\n---\n"))


def test_scalars_are_those_of_yaml_1_2(write: Any) -> None:
    config = settings.load(write("schedule: {base: 1e-3, cap: 5E+2}\nname: no\nseed: 010\nrun_folder: 2024-01-01\n"))
    assert (config.schedule.base, config.schedule.cap) == (1e-3, 500.0)
    assert (config.name, config.seed, config.run_folder) == ("no", 10, "2024-01-01")


def test_overrides_read_yaml_and_text_needs_no_quotes(write: Any) -> None:
    path = write("train: {max_steps: 5}\n")
    config = settings.load(
        path, ["train.max_steps=null", "optimizer={name: adam, l2: 1e-4}", "name=2024", "run_folder=a: [b", "seed = 3"]
    )
    assert config.train.max_steps is None and config.seed == 3
    assert (config.optimizer.name, config.optimizer.l2) == ("adam", 1e-4)
    assert (config.name, config.run_folder) == ("2024", "a: [b")
    assert settings.load(path, ["run_folder='x'", "train.epochs=2", "train.epochs=4"]).train.epochs == 4


def test_switching_the_kind_starts_the_section_afresh_in_any_order(write: Any) -> None:
    path = write("data: {shots: 10, length: 8}\nmodel: {filters: 4, units: 8}\n")
    config = settings.load(path, ["data.path=corpus", "data.kind=text", "model.kind=language"])
    assert config.data.kind == "text" and config.data.path == "corpus" and config.data.length == 35
    assert config.model.kind == "language" and config.model.units == 200
    same = settings.load(path, ["data.kind=campaign", "data.min_steps=7"])
    assert same.data.kind == "campaign" and (same.data.shots, same.data.min_steps) == (10, 7)


def test_bundled_configurations_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = settings.load(settings.bundled_configs()["quickstart"])
    for name in ("quickstart", "quickstart.yaml", "configs/quickstart.yaml"):
        assert settings.load(name) == expected
    assert mistake("configs/quikstart.yaml").endswith("did you mean quickstart?")
    (tmp_path / "quickstart").write_text("name: mine\n")
    assert settings.load("quickstart").name == "mine"


@pytest.mark.parametrize("name", sorted(settings.bundled_configs()))
def test_every_bundled_configuration_is_valid(name: str) -> None:
    assert settings.load(name).name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train:\n  epochs: 0\n", ":2: train.epochs: must be an integer > 0, got 0"),
        ("train:\n  epochs: 2.0\n", ":2: train.epochs: must be an integer > 0, got 2.0"),
        ("train:\n  max_steps: 0\n", ":2: train.max_steps: must be an integer > 0 or null, got 0"),
        ("seed: 1\ntrain:\n  epoch: 3\n", ":3: train.epoch: no such setting; did you mean train.epochs?"),
        ("epochs: 3\n", ":1: epochs: no such setting; did you mean train.epochs?"),
        ("\nmaster_weights: on\n", ":2: master_weights: must be true or false, got 'on'; write true"),
        ("master_weights: 0\n", ":1: master_weights: must be true or false, got 0"),
        ("precision: fp61\n", "must be one of auto, fp16, bf16, fp32, got 'fp61'; did you mean fp16?"),
        (
            "name: 2024\n",
            ":1: name: must be text that matches ^[A-Za-z0-9][A-Za-z0-9._-]*$, got 2024; put it in quotes",
        ),
        ("run_folder: 3\n", ":1: run_folder: must be text, got 3; put it in quotes"),
        ("schedule: {base: .inf}\n", ":1: schedule.base: must be a number > 0, got inf; it must be finite"),
        ("schedule: {base: .nan}\n", ":1: schedule.base: must be a number > 0, got nan; it must be finite"),
        ("seed: 1\nseed: 2\n", ":2: seed: given twice, first on line 1; keep one"),
        (
            "data:\n  kind: text\n  shots: 3\n",
            ":3: data.shots: no such setting; it needs data.kind campaign, which is text",
        ),
        (
            "data: {kind: txt}\n",
            ":1: data.kind: must be one of campaign, labelled, module, pairs, shapes, shots, text, got 'txt'",
        ),
        (
            "data: {kind: [text]}\n",
            ":1: data.kind: must be one of campaign, labelled, module, pairs, shapes, shots, text, got ['text']",
        ),
        (
            "evaluation:\n  deadlines_ms: [30, -1]\n",
            ":2: evaluation.deadlines_ms: must be a list of numbers > 0, got -1",
        ),
        ("evaluation: {deadlines_ms: 30}\n", ":1: evaluation.deadlines_ms: must be a list of numbers > 0, got 30"),
        ("train: 3\n", ":1: train: must be a section with `key: value` lines of its own, got 3"),
        ("data:\n", ":1: data: must be a section with `key: value` lines of its own, got nothing (null)"),
        ("data: {min_steps: 9, max_steps: 8}\n", ":1: data: min_steps must not exceed max_steps, got 9 > 8"),
        ("data: {kind: text}\n", "model.kind disruption needs data.kind campaign or shots or module, got text"),
        ("train:\n  epochs: 0\n  batch_size: x\n", ":2: train.epochs: must be an integer > 0, got 0 (and 1 more)"),
        ("- 1\n", ":1: must hold `key: value` lines, got [1]"),
        ("just words", ":1: must hold `key: value` lines, got 'just words'"),
        ("a: [1\n", ":2: not valid YAML: "),
        ("train:\n\tepochs: 3\n", ":2: not valid YAML: found character '\\t' that cannot start any token"),
        ("seed: 1\n---\nseed: 2\n", ":2: not valid YAML: but found another document"),
        ("seed: !!python/object:os.system x\n", "could not determine a constructor for the tag"),
        ("seed: &a [*a]\n", ":1: an alias that holds itself"),
        ("? [a]\n: 1\n", ":1: a key must be plain text"),
        ("seed: " + "9" * 5000, ":1: not a value: 99999999999999999999..."),
        ("seed: " + "[" * 3000, "not valid YAML: nested too deeply"),
        ('name: "a\\0"\n', ":1: name: must be text that matches"),
        ('run_folder: "a\\0b"\n', ":1: run_folder: must be printable text, got 'a\\x00b'"),
        ("seed: \x01\n", "not valid YAML: "),
        (b"seed: 1\nname: \xff\n", ":2: byte 0xff is not UTF-8; save the file as UTF-8"),
        ("a: " + "b" * (1 << 20), "larger than 1048576 bytes; this is no configuration"),
    ],
    ids=lambda value: repr(value)[:40] if not str(value).startswith(":") else "",
)
def test_mistakes_in_a_file(write: Any, text: str | bytes, said: str) -> None:
    path = write(text)
    line = mistake(path)
    assert line.startswith(str(path)) and said in line


def test_aliases_that_multiply_are_refused(write: Any) -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "more than 10000 keys and values" in mistake(write("\n".join(rows)))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.epochs", "'train.epochs' is not a setting; write key=value, for example train.epochs=3"),
        ("=3", "'=3' is not a setting; write key=value, for example train.epochs=3"),
        ("train.epochs=0", "train.epochs=0: must be an integer > 0, got 0"),
        ("train.epochs=", "train.epochs=: must be an integer > 0, got nothing (null)"),
        ("train.epochs=[1", "train.epochs=[1: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("epochs=3", "epochs=3: no such setting; did you mean train.epochs?"),
        ("optimiser.name=adam", "optimiser.name=adam: no such setting; did you mean optimizer.name?"),
        ("train..epochs=3", "train..epochs=3: no such setting; did you mean train.epochs?"),
        (
            "data.path=x",
            "data.path=x: no such setting; it needs data.kind labelled or shots or text, which is campaign",
        ),
        ("train=3", "train=3: must be a section with `key: value` lines of its own, got 3"),
        ("train={epochs: 0}", "train.epochs: must be an integer > 0, got 0"),
        (
            "model.kind=x",
            "model.kind=x: must be one of disruption, classifier, convolutional, detector, gan, language, python, "
            "translation, got 'x'",
        ),
        ("name=a b", "name=a b: must be text that matches ^[A-Za-z0-9][A-Za-z0-9._-]*$, got 'a b'"),
        ("run_folder=\udcff", "run_folder: the value is not UTF-8 text"),
    ],
)
def test_mistakes_in_an_override(write: Any, override: str, said: str) -> None:
    assert mistake(write("seed: 3\n"), override) == said


def test_override_below_a_value_names_the_file(write: Any) -> None:
    path = write("seed: 1\ntrain: 3\n")
    assert mistake(path, "train.epochs=2").startswith(f"{path}:2: train: must be a section")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert mistake(tmp_path) == f"{tmp_path}: is not a file; name a YAML file"
    assert "no configuration" in mistake(tmp_path / "missing.yaml")
    assert "no configuration ''" in mistake("")


@pytest.mark.parametrize(("batch", "ranks", "accumulation"), [(16, 1, 1), (16, 3, 1), (5, 4, 3)])
def test_global_batch_is_the_product(batch: int, ranks: int, accumulation: int) -> None:
    train = {"batch_size": batch, "accumulation": accumulation}
    product = batch * ranks * accumulation
    assert settings.resolve_batch(Config.model_validate({"train": train}), ranks) == product
    assert (
        settings.resolve_batch(Config.model_validate({"train": {**train, "global_batch": product}}), ranks) == product
    )
    with pytest.raises(UserError, match=rf"is {product + 1}, but .* {batch} x {ranks} ranks x .* = {product};"):
        settings.resolve_batch(Config.model_validate({"train": {**train, "global_batch": product + 1}}), ranks)


def allowed(field: Field) -> st.SearchStrategy[Any]:
    """Values that the field's schema allows."""
    choices = []
    for schema in field.schema.get("anyOf", [field.schema]):
        if "enum" in schema:
            choices.append(st.sampled_from(schema["enum"]))
        elif schema["type"] == "null":
            choices.append(st.none())
        elif schema["type"] == "boolean":
            choices.append(st.booleans())
        elif schema["type"] == "integer":
            low = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
            choices.append(st.integers(low, 10**30))
        elif schema["type"] == "number":
            low, high = schema.get("minimum"), schema.get("maximum")
            above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
            choices.append(
                st.floats(
                    low if above is None else above,
                    high if below is None else below,
                    exclude_min=above is not None,
                    exclude_max=below is not None,
                    allow_nan=False,
                    allow_infinity=False,
                )
            )
        elif "pattern" in schema:
            choices.append(st.from_regex(schema["pattern"], fullmatch=True).filter(lambda text: "\n" not in text))
        elif schema["type"] == "array":
            assert schema["items"] == {"exclusiveMinimum": 0, "type": "number"}
            choices.append(st.lists(st.floats(1e-9, 1e9), max_size=4))
        else:
            text = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=20)
            choices.append(text.filter(lambda value: value[:1] not in "'\""))
    return st.one_of(choices)


def spelled(value: Any) -> str:
    """A value as one would write it on the command line."""
    return value if isinstance(value, str) else json.dumps(value)


def test_a_function_stands_for_a_model_of_ones_own(write: Any) -> None:
    written = settings.load(write("model: my.models:build\n"))
    given = settings.load(write("seed: 2\n"), ["model=my.models:build"])
    for config in (written, given):
        assert (config.model.kind, config.model.function) == ("python", "my.models:build")


@pytest.mark.parametrize("field", FIELDS.fields, ids=lambda field: f"{field.path}-{field.kind}".rstrip("-"))
@hypothesis_settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_field_is_reached_and_round_trips(field: Field, data: st.DataObject, tmp_path: Path) -> None:
    value = data.draw(allowed(field))
    kind = value if field.path.endswith(".kind") else field.kind or "campaign"
    pairs = [("campaign", "disruption"), ("shots", "disruption"), ("text", "language")]
    pairs += [("labelled", "classifier"), ("labelled", "convolutional"), ("module", "language"), ("text", "python")]
    pairs += [("pairs", "translation"), ("shapes", "detector"), ("labelled", "gan")]
    pair = next(pair for pair in pairs if kind in pair)
    path = tmp_path / "empty.yaml"
    path.write_text("")
    others = [f"data.kind={pair[0]}", f"model.kind={pair[1]}"]
    try:
        config = settings.load(path, [f"{field.path}={spelled(value)}", *others])
    except UserError as error:  # the value is fine by itself but not with its neighbours' defaults
        expected = ("between floor and cap", "must not exceed", "which needs bidirectional true")
        assert any(words in str(error) for words in expected), error
        return
    got: Any = config
    for name in field.path.split("."):
        got = getattr(got, name)
    assert got == value and isinstance(got, bool) == isinstance(value, bool)
    path.write_text(settings.dump(config), encoding="utf-8")
    assert settings.load(path) == config


@hypothesis_settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_typo_is_one_line(data: st.DataObject, tmp_path: Path) -> None:
    """A key with a letter changed, or any value at all, gives a configuration or one line."""
    field = data.draw(st.sampled_from(FIELDS.fields))
    key = field.path
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(key) - 1))
        key = key[:at] + data.draw(st.sampled_from(["", "x", ".", "=", key[at] * 2])) + key[at + 1 :]
    value = data.draw(
        st.one_of(st.text(max_size=12), allowed(field).map(spelled), st.sampled_from(["{", "*a", "- -", "~"]))
    )
    path = tmp_path / "empty.yaml"
    path.write_text("")
    try:
        settings.load(path, [f"{key}={value}"])
    except UserError as error:
        assert str(error).isprintable() and len(str(error)) < 500


@hypothesis_settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.one_of(st.text(), st.text("ab:{}[]-,&*!#'\"\n \t0123456789.e|>%@`?~<"), st.binary()))
def test_any_file_is_a_configuration_or_one_line(text: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "any.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    try:
        settings.load(path)
    except UserError as error:
        assert str(error).isprintable() and len(str(error)) < 500
