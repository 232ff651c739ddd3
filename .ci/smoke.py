"""Try an installation of the wheel as its user would: ``python .ci/smoke.py BIN``, the ``bin`` of its environment.

Advice by library, command line and HTTP, the page, and a convolution: computed where the extra ``cpu`` is installed,
else refused with its name. It needs the standard library alone, so that it runs beside any environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PORT = "8765"
URL = f"http://127.0.0.1:{PORT}"
READY_S = 60.0


def main() -> None:
    """Run everything; a failed assertion ends it."""
    folder = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {"CONV_ADVISOR_HOME": home}
        environment.pop("PYTHONPATH", None)

        def run(*command: str) -> str:
            told = [str(folder / command[0]), *command[1:]]
            return subprocess.run(told, env=environment, cwd=home, check=True, capture_output=True, text=True).stdout

        library = run("python", "-c", "import conv_advisor; print(conv_advisor.advise('14-1-3-256-128').variant)")
        told = json.loads(run("conv-advisor", "advise", "14-1-3-256-128", "--json"))
        with served(folder / "conv-advisor", environment):
            asked = json.loads(get("/v1/advice?layer=14-1-3-256-128&device=nvidia-h200")[1])
            assert library.strip() == told["variant"] == asked["variant"]
            assert get("/")[0] == get("/problems/not-installed")[0] == 200
            has_cpu = "yes" in run(
                "python", "-c", "import importlib.util as u; print('yes' * bool(u.find_spec('numba')))"
            )
            status, body = get("/v1/convolutions", {"layer": "8-1-3-4-4", "variant": "cpu.direct"})
            assert status == (200 if has_cpu else 501), body
    sys.stdout.write(f"{folder}: {library.strip()}, convolutions {'computed' if has_cpu else 'refused by name'}\n")


@contextmanager
def served(command: Path, environment: dict[str, str]) -> Iterator[None]:
    """A server, from when it is ready."""
    server = subprocess.Popen([command, "serve", "--port", PORT, "--device", "cpu"], env=environment)
    try:
        until = time.monotonic() + READY_S
        while get("/readyz")[0] != 200:
            assert server.poll() is None, "the server ended"
            assert time.monotonic() < until, "the server is not ready"
            time.sleep(0.1)
        yield
    finally:
        server.terminate()
        server.wait(60)


def get(path: str, body: object = None) -> tuple[int, bytes]:
    """Status and body of an answer; 0 where nobody answers."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, content, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


if __name__ == "__main__":
    main()
