"""The description of a machine in docs/data.md is one that is read."""

import re
from pathlib import Path

from dist_mp.data.machine import read_machine

DOCS = Path(__file__).resolve().parents[2] / "docs/data.md"


def test_the_machine_in_the_documentation(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "machine.yaml").write_text(text.replace("1.0e+5", "1e5"), encoding="utf-8")
    machine = read_machine(tmp_path)
    assert (machine.name, machine.current_threshold, machine.profile_points) == ("jet", 1e5, 64)
    assert [signal.name for signal in machine.scalars] == ["ip", "li"]
    assert machine.scalars[1].shift_milliseconds == 12.0
    assert machine.profiles[0].folder == "ppf/hrts/te"
