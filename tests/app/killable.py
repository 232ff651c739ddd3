"""Starts real servers that are killed at a commit of the database: a process that has imported everything, and forks.

It reads one JSON object a line, the arguments of `serve`, and answers with the server's process id. What kills is here,
around the database's driver; the server knows nothing of it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import alembic.command
import alembic.ddl.postgresql
import sqlalchemy.dialects.postgresql.psycopg
import uvicorn
from fastapi import FastAPI
from sqlalchemy import Engine as Database
from sqlalchemy import event

from conv_advisor.app.main import create_app
from conv_advisor.app.service import service
from conv_advisor.app.settings import Settings
from conv_advisor.app.workers import tasks
from conv_advisor.app.workers.any_engine import EngineState
from conv_advisor.app.workers.engine import Engine
from conv_advisor.models.training import enough
from tests import fakes

assert alembic.ddl.postgresql
assert sqlalchemy.dialects.postgresql.psycopg

_WRITES = re.compile(r"\s*(INSERT(?: INTO)?|UPDATE|DELETE FROM|CREATE TABLE|ALTER TABLE)\s+(\w+)", re.IGNORECASE)


@dataclass
class Killer:
    """Kills this process just before, or just after, its so-manieth commit of a transaction that writes.

    Parameters
    ----------
    number : int
        0: never.
    when : str
        ``before`` or ``after``.
    note : Path
        Where it says what the transaction wrote.
    what : str
        As it stands there, e.g. ``insert measurements``: only commits that write it count. Empty: all do.
    """

    number: int
    when: str
    note: Path
    what: str = ""
    seen: int = 0
    counted: int = 0
    is_due: bool = False
    written: dict[int, list[str]] = field(default_factory=dict)

    def install(self) -> None:
        """Watch every database of this process."""
        event.listen(Database, "before_cursor_execute", self._on_statement)
        event.listen(Database, "after_cursor_execute", self._after_statement)
        event.listen(Database, "rollback", lambda connection: self.written.pop(self._key(connection), None))
        self._wrap_commit()

    def _wrap_commit(self) -> None:
        from sqlalchemy.engine import default

        commit = default.DefaultDialect.do_commit

        def do_commit(dialect: Any, connection: Any) -> None:
            wrote = self.written.pop(id(getattr(connection, "driver_connection", connection)), [])
            self._before(wrote)
            commit(dialect, connection)
            self._after()

        default.DefaultDialect.do_commit = do_commit

    def _on_statement(self, connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement == "COMMIT":
            self._before(self.written.pop(self._key(connection), []))
        found = _WRITES.match(statement)
        if found:
            self.written.setdefault(self._key(connection), []).append(f"{found[1].split()[0]} {found[2]}".lower())

    def _after_statement(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement == "COMMIT":
            self._after()

    def _before(self, wrote: list[str]) -> None:
        if not wrote:
            return
        self.seen += 1
        self.note.with_name("commits").write_text(str(self.seen))
        if self.what and self.what not in wrote:
            return
        self.counted += 1
        if self.counted == self.number:
            self.note.write_text(", ".join(dict.fromkeys(wrote)))
            self.is_due = True
            if self.when == "before":
                os.kill(os.getpid(), signal.SIGKILL)

    def _after(self) -> None:
        if self.is_due:
            os.kill(os.getpid(), signal.SIGKILL)

    @staticmethod
    def _key(connection: Any) -> int:
        return id(connection.connection.driver_connection)


class ThreadEngine(Engine):
    """An engine whose tasks run in threads of this process: what is killed here is the server, not its worker."""

    state, is_alive, queued, restarts, pid = EngineState.IDLE, True, 0, 0, None

    def __init__(self, device_id: str, **_: Any) -> None:
        self.device_id = device_id
        self._threads = ThreadPoolExecutor(1, f"engine {device_id}")

    def submit(self, task: Any, *args: Any, **_: Any) -> Future[Any]:
        return self._threads.submit(task, *args)

    def run(self, task: Any, *args: Any, **_: Any) -> Any:
        return self.submit(task, *args).result()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def serve(app: FastAPI, settings: Settings, options: dict[str, Any]) -> None:
    """Run the server on a device that replays, with a trainer that is done at once and needs no measurements."""
    home = Path(options["home"])
    Killer(options["number"], options["when"], home / "killed-at", options["what"]).install()
    service.Engine = ThreadEngine
    tasks.train, enough.check_enough = fakes.train_quickly, fakes.ask_for_nothing
    tasks._Process.device_id, tasks._Process.opener = options["recording"], fakes.REPLAY
    settings.__dict__.update(home=home, database_url=options["url"])
    uvicorn.run(app, port=options["port"], log_config=None, timeout_graceful_shutdown=1)


def main() -> None:
    """Fork a server for each line; the application is made once, which opens nothing, and takes long."""
    settings, nothing = Settings(job_lease_s=1.0), Path("/dev/null/no-timings")
    app = create_app(settings, open_engine=lambda _: ThreadEngine(tasks._Process.device_id), timings=nothing)
    app.openapi()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            sys.stdin.close()
            serve(app, settings, json.loads(line))
            os._exit(0)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        os.waitpid(pid, 0)
        sys.stdout.write("ended\n")
        sys.stdout.flush()


class Life:
    """One server, from its start to its end."""

    def __init__(
        self, process: subprocess.Popen[str], *, number: int = 0, when: str = "before", what: str = "", **options: Any
    ) -> None:
        self._process = process
        process.stdin.write(json.dumps(options | {"number": number, "when": when, "what": what}) + "\n")
        process.stdin.flush()
        self.pid = int(process.stdout.readline())

    def end(self) -> None:
        """Kill it if it still runs, and wait for its end."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        assert self._process.stdout.readline() == "ended\n"


@contextmanager
def fork_server(log: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that starts servers."""
    command = [sys.executable, "-m", "tests.app.killable"]
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


if __name__ == "__main__":
    main()
