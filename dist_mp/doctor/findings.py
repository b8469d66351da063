"""Findings: what was looked at, what it is, and whether it keeps a job from running or from running well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from dist_mp.doctor.facts import RankFacts
from dist_mp.doctor.links import Link
from dist_mp.launch.mpirun import Mpirun
from dist_mp.precision.policy import resolve_precision

Verdict = Literal["fine", "note", "problem"]

ENOUGH_SHARED_BYTES = 256 << 20
_VENDORS = {"Open MPI": "Open MPI", "MPICH": "MPICH", "Intel MPI": "Intel MPI", "openmpi": "Open MPI", "mpich": "MPICH"}


@dataclass(frozen=True)
class Finding:
    """A row of the table."""

    topic: str
    text: str
    verdict: Verdict = "fine"
    advice: str = ""
    """What to do, unless the verdict is fine."""


def judge_ranks(ranks: Sequence[RankFacts]) -> list[Finding]:
    """Findings about ranks that have met, and about their machines."""
    return [
        _versions(ranks),
        _library(ranks),
        _threads_of_library(ranks),
        *_launcher(ranks),
        _cores(ranks),
        _processor(ranks),
        _memory(ranks),
        _devices(ranks),
        _network(ranks),
    ]


def judge_mpirun(mpirun: Mpirun | str, library_vendor: str, library_version: str) -> Finding:
    """Whether mpirun and library are of one MPI; `mpirun` is a text where there is none."""
    if isinstance(mpirun, str):
        return Finding("mpirun", mpirun, "problem", "load the MPI module, or install dist-mp[openmpi]")
    if _VENDORS.get(library_vendor, library_vendor) != mpirun.vendor:
        said = f"{mpirun}, but the library is {library_vendor} {library_version}"
        return Finding("mpirun", said, "problem", "a job of n ranks would be n jobs of one: use both from one MPI")
    if library_version.split(".")[0] != mpirun.version.split(".")[0]:
        said = f"{mpirun}, but the library is version {library_version}"
        return Finding("mpirun", said, "note", "two installations of one MPI; use both from one")
    return Finding("mpirun", str(mpirun))


def judge_links(links: Sequence[Link]) -> list[Finding]:
    """A finding for each kind of link, with the slowest pair."""
    found = []
    for kind in ("within a node", "between nodes"):
        some = [link for link in links if link.kind == kind]
        if not some:
            continue
        latency, rate = max(some, key=lambda link: link.latency_us), min(some, key=lambda link: link.gb_per_s)
        text = f"{latency.latency_us:.1f} us, {rate.gb_per_s:.2f} GB/s"
        if len(some) > 1:
            text += f" at worst of {len(some)} pairs (ranks {rate.first} and {rate.second})"
        found.append(Finding(f"link {kind}", text))
    return found


def _all_alike(ranks: Sequence[RankFacts], get: Callable[[RankFacts], str]) -> dict[str, list[int]]:
    """The ranks that have each value."""
    values: dict[str, list[int]] = {}
    for facts in ranks:
        values.setdefault(get(facts), []).append(facts.rank)
    return values


def _few(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}{' ...' if len(ranks) > 8 else ''}"


def _differing(topic: str, values: dict[str, list[int]], advice: str, verdict: Verdict = "problem") -> Finding:
    text = "; ".join(f"{_few(who)}: {value}" for value, who in values.items())
    return Finding(topic, text, verdict, advice)


def _versions(ranks: Sequence[RankFacts]) -> Finding:
    values = _all_alike(ranks, lambda facts: ", ".join(f"{k} {v}" for k, v in facts.versions.items()))
    if len(values) > 1:
        return _differing("versions", values, "all nodes must see one environment")
    if not {"tensorflow", "tensorflow-cpu"} & set(ranks[0].versions):
        return Finding("versions", next(iter(values)), "problem", "install dist-mp[cpu], or dist-mp[gpu]")
    return Finding("versions", next(iter(values)))


def _library(ranks: Sequence[RankFacts]) -> Finding:
    def described(facts: RankFacts) -> str:
        one = facts.library
        built = f", built for {one['built_for']}" if one["built_for"] else ""
        where = f" ({one['path']})" if one["path"] else ""
        return f"{one['vendor']} {one['version']}{where}; mpi4py {one['mpi4py']}{built}"

    values = _all_alike(ranks, described)
    if len(values) > 1:
        return _differing("MPI library", values, "all ranks must load the same library")
    built_for = _VENDORS.get(ranks[0].library["built_for"])
    if built_for is not None and built_for != _VENDORS.get(ranks[0].library["vendor"]) and built_for != "MPICH":
        return Finding("MPI library", next(iter(values)), "problem", "mpi4py and library are of different MPIs")
    return Finding("MPI library", next(iter(values)))


def _threads_of_library(ranks: Sequence[RankFacts]) -> Finding:
    level = ranks[0].library["threads"]
    if level == "multiple":
        return Finding("MPI threads", level)
    if level == "serialized":
        return Finding("MPI threads", level, "note", "the watchdog cannot ask which rank is missing")
    return Finding("MPI threads", level, "problem", "use a build with MPI_THREAD_MULTIPLE")


def _launcher(ranks: Sequence[RankFacts]) -> list[Finding]:
    facts = ranks[0]
    nodes = _all_alike(ranks, lambda one: one.slurm_node or one.host)
    where = ", ".join(f"{node} ({len(who)})" for node, who in list(nodes.items())[:8])
    where += f" and {len(nodes) - 8} more" if len(nodes) > 8 else ""
    if not facts.launcher:
        return [Finding("launcher", f"none: one rank on {where}")]
    text = f"{facts.launcher}: {facts.size} rank{'' if facts.size == 1 else 's'} on {where}"
    if facts.launcher_size != facts.size:
        return [
            Finding("launcher", f"{text}; the launcher started {facts.launcher_size}", "problem", "see mpirun above")
        ]
    return [Finding("launcher", text)]


def _cores(ranks: Sequence[RankFacts]) -> Finding:
    """Binding, by node: cores that ranks share, and threads that share a core."""
    crowded = []
    for node in dict.fromkeys(facts.node for facts in ranks):
        here = [facts for facts in ranks if facts.node == node]
        usable = len({core for facts in here for core in facts.cores})
        if len(here) > usable:
            crowded.append(f"{here[0].slurm_node or here[0].host}: {len(here)} ranks on {usable} cores")
    counts = sorted({len(facts.cores) for facts in ranks})
    text = f"{' to '.join(map(str, (counts[0], counts[-1])[: len(counts)]))} of {ranks[0].machine_cores} cores a rank"
    free = all(len(facts.cores) == facts.machine_cores for facts in ranks)
    text += ", not bound" if free else f", bound ({_ranges(ranks[0].cores)} for rank 0)"
    text += f", {ranks[0].numa_nodes} NUMA node{'' if ranks[0].numa_nodes == 1 else 's'}"
    threads = ", ".join(f"{name} {value}" for name, value in ranks[0].threads.items())
    text += f"; {threads}" if threads else "; threads by the setting `threads`"
    if crowded:
        return Finding("cores", f"{text}; {'; '.join(crowded[:4])}", "note", "ranks share cores and run slower")
    return Finding("cores", text)


def _ranges(numbers: Sequence[int]) -> str:
    """``0-3,8`` for 0, 1, 2, 3, 8."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _processor(ranks: Sequence[RankFacts]) -> Finding:
    values = _all_alike(ranks, lambda facts: f"{facts.processor}: {' '.join(facts.features) or 'none of what we use'}")
    if len(values) > 1:
        return _differing("processor", values, "a job is as fast as its slowest node, and sums may differ", "note")
    facts = ranks[0]
    precision = resolve_precision("auto", bool(facts.gpus), dict.fromkeys(facts.features, True))
    text = f"{next(iter(values))}; precision auto is {precision.name}"
    if "f16c" not in facts.features and "avx512f" not in facts.features:
        return Finding("processor", text, "note", "without F16C the 16-bit exchange converts slowly")
    return Finding("processor", text)


def _memory(ranks: Sequence[RankFacts]) -> Finding:
    least, shared = min(facts.memory_bytes for facts in ranks), min(facts.shared_bytes for facts in ranks)
    locked = min((facts.memlock_bytes for facts in ranks if facts.memlock_bytes >= 0), default=-1)
    text = f"{least / 2**30:.1f} GiB free, /dev/shm {shared / 2**30:.1f} GiB free"
    if shared < ENOUGH_SHARED_BYTES:
        advice = "ranks of a node exchange through it: enlarge it (docker run --shm-size=2g)"
        return Finding("memory", text, "problem" if max(f.size for f in ranks) > 1 else "note", advice)
    if any(facts.fabrics for facts in ranks) and 0 <= locked < 1 << 30:
        text += f", {locked // 2**10} KiB may be locked"
        return Finding("memory", text, "note", "InfiniBand wants more: ulimit -l unlimited")
    return Finding("memory", text)


def _devices(ranks: Sequence[RankFacts]) -> Finding:
    values = _all_alike(
        ranks, lambda facts: f"{len(facts.gpus)} x {facts.gpus[0].split(': ')[-1]}" if facts.gpus else ""
    )
    if list(values) == [""]:
        return Finding("GPUs", "none; ranks compute on the processor")
    if len(values) > 1:
        return _differing(
            "GPUs", {value or "none": who for value, who in values.items()}, "ranks should see alike", "note"
        )
    text = next(iter(values))
    on_node = max(sum(one.node == facts.node for one in ranks) for facts in ranks)
    if on_node > len(ranks[0].gpus) > 1:
        return Finding("GPUs", f"{text}, {on_node} ranks a node", "note", "ranks share GPUs: start one a GPU")
    return Finding("GPUs", text)


def _network(ranks: Sequence[RankFacts]) -> Finding:
    def described(facts: RankFacts) -> str:
        names = [f"{one['name']}{_speed(one['mbit'])}" for one in facts.interfaces]
        return ", ".join([*facts.fabrics, *names]) or "none but loopback"

    values = _all_alike(ranks, described)
    if len(values) > 1:
        return _differing("network", values, "nodes have different networks, or different names for them", "note")
    text = next(iter(values))
    inactive = [port for facts in ranks for port in facts.fabrics if ": active" not in port]
    if inactive:
        return Finding("network", text, "note", f"{inactive[0]} is not active")
    if ranks[0].num_nodes > 1 and text == "none but loopback":
        return Finding("network", text, "note", "nodes without a network")
    return Finding("network", text)


def _speed(mbit: int) -> str:
    return f" {mbit / 1000:g} Gbit/s" if mbit > 0 else ""


def worst(findings: Iterable[Finding]) -> int:
    """The exit status: 1 where there is a problem, else 0."""
    return int(any(finding.verdict == "problem" for finding in findings))
