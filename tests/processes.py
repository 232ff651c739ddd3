"""What tests ask about processes, how they wait, and the ports of what they start."""

from __future__ import annotations

import atexit
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.wrk import kept_port

PATIENT: Final = {"CONV_ADVISOR_START_TIMEOUT_S": "600", "CONV_ADVISOR_CONVOLUTION_DEADLINE_S": "250"}
"""Settings: a busy machine may take long to start a worker, and to compile a kernel with its first launch."""
_KEPT_PORTS: Final = ExitStack()
atexit.register(_KEPT_PORTS.close)
_USUAL_S: Final = 0.1
"""For a million steps of a generator: chosen, as what a server's core takes at most."""
_REST_S: Final = 0.4
"""Between two measurements of that, which shall not be a load themselves."""


def eventually(is_so: Callable[[], object], within_s: float = 300.0) -> bool:
    """Whether it becomes so within that time."""
    until = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() >= until:
            return False
        time.sleep(0.01)
    return True


def free_port() -> int:
    """A port of this host that is kept for whoever is told it, as long as this process lives.

    Nobody is given it by chance, not even while one server has ended and the next has not begun.
    """
    return _KEPT_PORTS.enter_context(kept_port())


def slowness() -> float:
    """How many times longer than usual this machine takes for the same work now; at least 1.

    A virtual machine may have a fraction of its speed for minutes. What is promised in seconds is of the usual speed.
    """
    began = time.perf_counter()
    sum(number * number for number in range(10**6))
    return max(1.0, (time.perf_counter() - began) / _USUAL_S)


class Slowed:
    """How many times longer than usual this machine took for the same work, at most, in a while that is over."""

    most = 1.0


@contextmanager
def slowness_meanwhile() -> Iterator[Slowed]:
    """Measure `slowness` for as long as the block runs, in a process of its own; ask for the most of it afterwards.

    What is measured before or after a promise was put to the test says nothing of a machine that stood still meanwhile.
    """
    slowed, command = Slowed(), [sys.executable, "-m", __name__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout
        assert watching.stdout.readline() == "begun\n"
        try:
            yield slowed
        finally:
            slowed.most = float(watching.communicate()[0])


def _watch() -> None:
    """Say that it has begun, and at the end of the input the most slowness until then."""
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    most, is_over = 1.0, False
    while not is_over:
        began = time.perf_counter()
        is_over = bool(select.select([sys.stdin], [], [], _REST_S)[0])
        late_s = max(0.0, time.perf_counter() - began - _REST_S)
        most = max(most, slowness() + late_s / _USUAL_S)
    sys.stdout.write(f"{most}\n")


def children(pid: int) -> list[int]:
    """The processes that any thread of this one has started and not collected.

    Each process is asked for its parent: the lists that threads have of their own go with a thread that ends.
    """
    others = (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
    return [other for other in others if parent_of(other) == pid]


def parent_of(pid: int) -> int | None:
    """The process that started this one; None where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def command_of(pid: int) -> bytes:
    """The command line of a process, NUL between its words; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def is_running(pid: int) -> bool:
    """Whether the process has not ended; one that nobody has collected yet has.

    One whose first thread has ended has not while others end: nobody can collect it before.
    """
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    threads = int(others[16])
    return state not in "ZX" or threads > 1


def are_at_rest(pids: Sequence[int]) -> bool:
    """Whether each process sleeps and uses no time of a processor for a while; who waits for one does not sleep."""

    def use(pid: int) -> tuple[str, str]:
        folder = Path(f"/proc/{pid}")
        state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        return state, (folder / "schedstat").read_text().split()[0]

    try:
        before = [use(pid) for pid in pids]
        time.sleep(0.3)
        return all(state == "S" for state, _ in before) and before == [use(pid) for pid in pids]
    except OSError:
        return False


def read_pid(path: Path) -> int:
    """The process id that a task writes once it runs."""
    assert eventually(lambda: path.exists() and path.read_text())
    return int(path.read_text())


if __name__ == "__main__":
    _watch()
