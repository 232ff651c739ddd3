"""Run inside an image by its own Python: what is wrong with its files, one line each; nothing if all is well."""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

_ROOTS = ("/usr", "/opt", "/etc", "/var")
_UNWANTED_COMMANDS = frozenset({"sh", "bash", "dash", "apt", "dpkg", "pip", "pip3", "gcc", "ld", "curl", "nvcc", "su"})
_FROM_THE_HOST = ("libcuda.so", "libnvidia-ml.so")
"""The driver's: the container toolkit brings them."""


def files() -> Iterator[Path]:
    """Every file, of every layer."""
    for root in _ROOTS:
        for folder, _, names in os.walk(root):
            yield from (Path(folder) / name for name in names)


def faults_of(path: Path) -> Iterator[str]:
    """What is wrong with one file by its name and rights."""
    if path.parent.name in ("bin", "sbin") and path.name in _UNWANTED_COMMANDS:
        yield "a command that the service does not use"
    if path.name.startswith(_FROM_THE_HOST):
        yield "a library of the driver, which is the host's"
    if path.is_symlink():
        if not path.exists():
            yield f"a link to {path.readlink()}, which is not here"
        return
    mode = path.lstat().st_mode
    if mode & (stat.S_ISUID | stat.S_ISGID):
        yield "runs with rights other than its caller's"
    if mode & stat.S_IWOTH or os.access(path, os.W_OK):
        yield "can be written by the service"
    if "site-packages" in path.parts and {"tests", "test"} & set(path.parts[:-1]):
        yield "a test"


def libraries() -> Iterator[Path]:
    """Every shared library and extension module; those in ``<package>.libs`` load with what needs them."""
    shared = (path for path in files() if ".so" in path.suffixes and not path.is_symlink())
    return (path for path in shared if path.parts[1] != "etc" and not path.parent.name.endswith(".libs"))


def load(path: Path) -> str | None:
    """Load a library with everything it links to; what failed."""
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        missing = str(error)
        return None if any(name in missing for name in _FROM_THE_HOST) else missing
    return None


def _is_cupy(path: Path) -> bool:
    return any(part.startswith("cupy") for part in path.parts)


def load_cuda() -> None:
    """Load what CuPy loads by path before its own modules, which name it without one."""
    for path in libraries():
        if path.match("nvidia/cu13/lib/*"):
            load(path)


def load_all() -> Iterator[str]:
    """Load each library in a process of its own, since some do not bear others beside them; those that fail."""
    for path in sorted(libraries(), key=_is_cupy):
        if _is_cupy(path):
            load_cuda()  # once: what is loaded stays, here and in the processes that follow
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, (load(path) or "").encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            fault = pipe.read()
        _, status = os.waitpid(child, 0)
        if fault or status:
            yield f"{path}: {fault or f'loading it ends the process with status {status}'}"


def main() -> int:
    """Print every fault; 1 if there is one."""
    faults = [f"{path}: {fault}" for path in files() for fault in faults_of(path)]
    faults += load_all()
    if os.getuid() == 0:
        faults.append("the service runs as root")
    sys.stdout.write("".join(f"{fault}\n" for fault in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
