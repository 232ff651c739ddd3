"""Real clusters for tests: scheduler and workers as processes of their own, TLS by certificates made for the test."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import trustme

from conv_advisor.app.workers.cluster.engine import ClusterEngine
from conv_advisor.app.workers.cluster.link import Link

ROOT = Path(__file__).parents[2]
START_S = 300.0
"""Longest start of a process on a machine that does much else; nothing waits for it to pass."""
_IMPORTS = """
import sys
from pathlib import Path
from conv_advisor.app.workers.cluster.link import Link
from conv_advisor.app.workers.cluster.start import serve_scheduler, serve_workers

def say(address):
    print(address, flush=True)

"""
_WORKER = (
    "address, device, opener, *files = sys.argv[1:]\n"
    f"serve_workers(Link(address, *map(Path, files)), [device], say, opener=opener, start_timeout_s={START_S})\n"
)
_SCHEDULER = "address, *files = sys.argv[1:]\nserve_scheduler(Link(address, *map(Path, files)), say)\n"
_DIE_WITH_PARENT = "import ctypes; ctypes.CDLL(None).prctl(1, 9)\n"
"""PR_SET_PDEATHSIG: a test that is killed leaves no cluster behind."""
COMMAND = ("-c", "from conv_advisor.app.cli import main; main()")


class Process:
    """A Python program in a process of its own, which says its address when it is ready."""

    def __init__(self, _c: str, program: str, *arguments: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _DIE_WITH_PARENT + program, *arguments],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"} | environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.address = ""

    def await_address(self) -> str:
        assert self._process.stdout
        self.address = self._process.stdout.readline().strip()
        assert self.address, f"it ended with status {self._process.wait(10)}"
        return self.address

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, timeout_s: float = START_S) -> int:
        return self._process.wait(timeout_s)

    def end(self) -> None:
        """End it and everything it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, 9)
        self._process.wait(START_S)
        assert self._process.stdout
        self._process.stdout.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


class Cluster:
    """A scheduler, and workers that come and go.

    Parameters
    ----------
    files : tuple of Path
        Authority, certificate and key; empty: no TLS.
    """

    def __init__(self, files: tuple[Path, ...] = ()) -> None:
        self._files = files
        self.workers: list[Process] = []
        scheme = "tls" if files else "tcp"
        self.scheduler = Process("-c", _IMPORTS + _SCHEDULER, f"{scheme}://127.0.0.1:0", *map(str, files))
        self.link = Link(self.scheduler.await_address(), *files)

    def add(self, device: str, opener: str, count: int = 1) -> list[Process]:
        """Start workers, all at once."""
        files = list(map(str, self._files))
        added = [Process("-c", _IMPORTS + _WORKER, self.link.address, device, opener, *files) for _ in range(count)]
        self.workers += added
        for worker in added:
            worker.await_address()
        return added

    def engine(self, n_workers: int = 0, **options: object) -> ClusterEngine:
        """An engine on the cluster that sees so many workers."""
        given: Any = {"start_timeout_s": START_S} | options
        engine = ClusterEngine(self.link, **given)
        assert engine.wait_ready(START_S, n_workers) if n_workers else True
        return engine

    def pids(self) -> dict[str, int]:
        """Process ids of the Dask workers, not of their nannies, by address."""
        from distributed import Client

        with Client(self.link.address, security=self.link.security(), set_as_default=False) as client:
            return dict(client.run(os.getpid))

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.end()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """Files of an authority, and of a certificate of its own with its key."""
    authority = trustme.CA()
    issued = authority.issue_cert("conv-advisor", "127.0.0.1")
    files = tuple(folder / name for name in ("ca.pem", "cert.pem", "key.pem"))
    authority.cert_pem.write_to_path(files[0])
    issued.cert_chain_pems[0].write_to_path(files[1])
    issued.private_key_pem.write_to_path(files[2])
    return files[0], files[1], files[2]
