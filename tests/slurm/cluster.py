"""A real Slurm cluster on this machine: slurmctld and two slurmd, each a node of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "libpmix-dev")
"""libpmix-dev: Slurm's PMIx plugin on Debian loads the library by the name that only this package has."""
REQUIRED = "DIST_MP_REQUIRE_SLURM"
"""Set where a missing cluster is a failure and no reason to skip."""
_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "munged")
_CONF = """
ClusterName=test
SlurmctldHost={host}
SlurmUser=root
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
# Both nodes are this machine: without folders of their own for each, PMIx's would collide.
TmpFS={folder}/tmp-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2
ReturnToService=2
MpiDefault=none
KillWait=30
MinJobAge=300
SlurmdTimeout=10
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} RealMemory=4000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus} RealMemory=4000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=100 State=UP
PartitionName=urgent Nodes=n1,n2 MaxTime=INFINITE PriorityTier=10 State=UP
"""


class NoClusterError(Exception):
    """Slurm cannot run here; the text says why."""


class Cluster:
    """Slurm from its start to its end. Its commands find it through SLURM_CONF."""

    def __init__(self, folder: Path) -> None:
        """The cluster keeps everything in `folder`."""
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which Slurm's commands, and Open MPI as root, work on this cluster."""
        return {
            "SLURM_CONF": str(self.conf),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1",
        }

    def start(self) -> None:
        """Install what is missing and start all daemons.

        Raises:
            NoClusterError: not root, no package manager, or a daemon does not come up.
        """
        install()
        for name in ("state", "tmp-n1", "tmp-n2"):
            (self.folder / name).mkdir(exist_ok=True)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        options = {"key-file": key, "socket": self.folder / "munge.socket", "pid-file": self.folder / "munge.pid"}
        options |= {"log-file": self.folder / "munge.log", "seed-file": self.folder / "munge.seed"}
        self._daemon(["munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in options.items())])
        cpus = len(os.sched_getaffinity(0))
        text = _CONF.format(host=socket.gethostname(), folder=self.folder, ports=_free_ports(3), cpus=cpus)
        self.conf.write_text(text)
        self._until(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._daemon(["slurmctld", "-D", "-f", str(self.conf)])
        for name in ("n1", "n2"):
            self.start_node(name)
        self._until(lambda: self.ask("sinfo", "--noheader", "--states=idle", "--format=%D").strip() == "2", "Slurm")

    def start_node(self, name: str) -> None:
        """Start the daemon of a node."""
        self._nodes[name] = self._daemon(["slurmd", "-D", "-f", str(self.conf), "-N", name])

    def fail_node(self, name: str) -> None:
        """Let a node go down as if its power were cut: its daemon and all processes of its jobs are killed."""
        daemon = self._nodes.pop(name)
        of_node = [p for p in psutil.process_iter() if _runs_on(p, name, self.conf)]
        daemon.kill()
        daemon.wait()
        for process in of_node:
            _kill(process)
        self.ask("scontrol", "update", f"nodename={name}", "state=down", "reason=test")

    def ask(self, *argv: str) -> str:
        """The output of one of Slurm's commands; empty where it fails."""
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **self.environment}
        )
        return done.stdout if done.returncode == 0 else ""

    def stop(self) -> None:
        """End all jobs and daemons, and whatever a job left."""
        self.ask("scancel", "--full", "--user=root")
        self.ask("scancel", "--full", "--signal=KILL", "--user=root")
        end = time.monotonic() + 15
        while self.ask("squeue", "--noheader").strip() and time.monotonic() < end:
            time.sleep(0.3)
        for daemon in reversed(self._daemons):
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGTERM)
        for daemon in self._daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for process in self.left():
            _kill(process)

    def left(self) -> list[psutil.Process]:
        """Live processes of this cluster's jobs and daemons."""
        return [p for p in psutil.process_iter() if _variable(p, "SLURM_CONF") == str(self.conf)]

    def logs(self) -> str:
        """The ends of the daemons' logs."""
        texts = []
        for path in sorted(self.folder.glob("*.log")):
            texts += [f"--- {path.name}", *path.read_text(errors="replace").splitlines()[-30:]]
        return "\n".join(texts)

    def _daemon(self, argv: list[str]) -> subprocess.Popen[bytes]:
        output = open(self.folder / f"{argv[0]}.out", "ab")  # noqa: SIM115 - open as long as the daemon
        with output:
            daemon = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "SLURM_CONF": str(self.conf)},
            )
        self._daemons.append(daemon)
        return daemon

    def _until(self, done: object, what: str, seconds: float = 30.0) -> None:
        assert callable(done)
        end = time.monotonic() + seconds
        while not done():
            dead = [str(daemon.args) for daemon in self._daemons if daemon.poll() is not None]
            if dead or time.monotonic() > end:
                outs = "\n".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.out"))
                raise NoClusterError(f"{what} does not come up ({dead})\n{outs}\n{self.logs()}")
            time.sleep(0.2)


def install() -> None:
    """Install Slurm from the system's packages where it is missing.

    Raises:
        NoClusterError: it is missing, and this is not root on a system with apt, or the installation fails.
    """
    if os.geteuid() != 0:
        raise NoClusterError("a test cluster of Slurm needs root")
    if all(shutil.which(program) for program in _PROGRAMS) and _has_pmix():
        return
    if shutil.which("apt-get") is None:
        raise NoClusterError(f"Slurm is not installed ({', '.join(PACKAGES)}), and there is no apt-get to install it")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    commands = [["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES]]
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
        except subprocess.TimeoutExpired as error:
            raise NoClusterError(f"{' '.join(command)} gave no answer") from error
        if done.returncode:
            raise NoClusterError(f"{' '.join(command)} failed: {done.stderr[-500:]}")


def _has_pmix() -> bool:
    return any(Path("/usr/lib").glob("*/pmix2/lib/libpmix.so"))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _variable(process: psutil.Process, name: str) -> str:
    try:
        return process.environ().get(name, "")
    except (psutil.Error, OSError):
        return ""


def _runs_on(process: psutil.Process, node: str, conf: Path) -> bool:
    if _variable(process, "SLURM_CONF") != str(conf):
        return False
    if _variable(process, "SLURMD_NODENAME") == node:
        return True
    try:
        return process.name() == "slurmstepd" and f"-N {node}" in " ".join(process.parent().cmdline())  # type: ignore[union-attr]
    except (psutil.Error, AttributeError):
        return False


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error:
        return
