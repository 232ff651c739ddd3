"""The image with CUDA on a GPU host without an engine: ``python -m deploy.image.trial ROOT --config FILE``, as root.

ROOT is the image's root, unpacked; FILE its configuration, which `buildah inspect` prints. What NVIDIA's container
toolkit would add is added: the driver's libraries, and its device files. The image's own command then runs as process 1
of its own, as `docker compose --profile gpu up` runs it: as its user, without a capability, on a root that cannot be
written, asking for a token. From outside it is asked for advice and for convolutions, one of which is held against
float64, and is ended by SIGTERM. A line says what was seen of each step; the status is 0 if all was as it should be.

It needs Python and NumPy alone, and `unshare`, `setpriv` and `chroot`.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.wrk import kept_port
from deploy.image.container import USER, Container, children, stop

DRIVER: Final = ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler", "libnvidia-nvvm", "libnvidia-gpucomp")
"""What the toolkit brings for ``NVIDIA_DRIVER_CAPABILITIES=compute,utility`` and something here loads."""
LAYER: Final = "14-2-3-32-16"
LARGEST_ERROR: Final = 1e-3
ADVISED_DEVICE: Final = "nvidia-h200"
LONGEST_START_S: Final = 240.0
LONGEST_END_S: Final = 60.0
_WELL: Final = ("measured", "pruned", "unsteady", "not_applicable", "not_supported", "workspace_exceeded")
"""Outcomes of attempts in which nothing broke."""
_LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"
_TOKENS: Final = "/var/lib/conv-advisor/trial-tokens"


class Unlike(Exception):
    """Something is not as it should be."""


def main() -> int:
    """Try the image that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="the image's root, unpacked; files are added to it")
    parser.add_argument("--config", type=Path, required=True, help="what `buildah inspect` prints of the image")
    parser.add_argument("--device", default="cuda:0", help="that the service owns (default cuda:0)")
    parser.add_argument(
        "--nvidia", type=Path, help="NVIDIA's folder of a site-packages, for an image without its wheels"
    )
    chosen = parser.parse_args()
    if chosen.nvidia:
        add_wheels(chosen.root, chosen.nvidia)
    if chosen.device != "cpu":
        add_driver(chosen.root)
    config = json.loads(chosen.config.read_text())["Docker"]["config"]
    with tempfile.TemporaryDirectory(prefix="conv-advisor-trial-") as folder:
        volume = Path(folder)
        os.chown(volume, USER, USER)
        try:
            try_out(Container(chosen.root.resolve(), config, volume), chosen.device)
        except Unlike as error:
            say("NOT AS IT SHOULD BE", str(error))
            return 1
    say("all was as it should be", "")
    return 0


def say(what: str, seen: object) -> None:
    """Print a line of what was seen."""
    sys.stdout.write(f"{what}: {seen}\n" if seen != "" else f"{what}\n")
    sys.stdout.flush()


def check(is_so: bool, what: str) -> None:
    """Raise Unlike where it is not so."""
    if not is_so:
        raise Unlike(what)


def add_wheels(root: Path, nvidia: Path) -> None:
    """Bring the libraries of NVIDIA's wheels where the image has them; they are of no one version of Python."""
    (packages,) = (root / "opt/conv-advisor/lib").glob("python3*/site-packages")
    for name in ("cu13", "cudnn"):
        shutil.copytree(
            nvidia / name, packages / "nvidia" / name, copy_function=_link, symlinks=True, dirs_exist_ok=True
        )
    wheels = sorted(path.name.removesuffix(".dist-info") for path in nvidia.parent.glob("nvidia_*.dist-info"))
    say("NVIDIA's wheels", ", ".join(wheels))


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
    return target


def add_driver(root: Path) -> None:
    """Bring the driver's libraries, as the container toolkit does, and tell the loader."""
    ctypes.CDLL("libcuda.so.1")
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = next(line.split(maxsplit=5)[5] for line in lines if "libcuda.so" in line)
    for folder in {Path(mapped).parent, Path(mapped).resolve().parent}:
        for name in DRIVER:
            for library in folder.glob(f"{name}.so.[0-9]*"):
                shutil.copy(library.resolve(), root / _LIBRARIES / library.name)
    subprocess.run(["/sbin/ldconfig", "-r", str(root)], check=True)
    devices = sorted(str(path) for path in Path("/dev").glob("nvidia*"))
    say("the driver", f"{Path(mapped).resolve().name}, {', '.join(devices)}")


@dataclass(frozen=True)
class Asked:
    """The running service, asked with its token or without."""

    url: str
    token: str

    def get(self, path: str, *, with_token: bool = True) -> tuple[int, Any]:
        """Status and JSON of an answer; 0 and None where none came."""
        try:
            status, body, _ = self.send(path, with_token=with_token)
            return status, json.loads(body)
        except (OSError, ValueError):
            return 0, None

    def send(
        self, path: str, body: bytes | None = None, media_type: str = "", *, with_token: bool = True
    ) -> tuple[int, bytes, str]:
        """Status and body of an answer, and what stands in its header Convolution."""
        headers = {"authorization": f"Bearer {self.token}"} if with_token else {}
        headers |= {"content-type": media_type} if media_type else {}
        request = urllib.request.Request(self.url + path, body, headers)  # noqa: S310 - our own server
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310 - our own server
                return answer.status, answer.read(), answer.headers.get("Convolution", "")
        except urllib.error.HTTPError as error:
            return error.code, error.read(), ""


def try_out(container: Container, device: str) -> None:
    """Start the service, ask it, and end it.

    Raises
    ------
    Unlike
    """
    status, text = container.call("conv-advisor", "token", "me", "--scopes", "read,measure", "--file", _TOKENS)
    check(status == 0, f"no token was made: {text}")
    with _serving(container, device, text.splitlines()[-1]) as (process, service):
        look_at(process)
        status, text = container.call(*container.config["Healthcheck"]["Test"][1:], CONV_ADVISOR_PORT=service.url[-5:])
        check(status == 0, f"its health check says {status}: {text}")
        say("its own health check", "well")
        ask(service)
        convolve(service)
        measure_all(service)
        end(process)


@contextmanager
def _serving(container: Container, device: str, token: str) -> Iterator[tuple[subprocess.Popen[str], Asked]]:
    log = container.volume / "log"
    began = time.monotonic()
    # The container shares this machine's network, and a port that it can share stays bound: nobody else is given it.
    with kept_port() as port, log.open("w") as output:
        service = Asked(f"http://127.0.0.1:{port:05}", token)
        settings = {"PORT": str(port), "DEVICE": device, "TOKENS_FILE": _TOKENS, "LOG_FORMAT": "json"}
        variables = {f"CONV_ADVISOR_{name}": value for name, value in settings.items()}
        process = container.start(output, **variables)
        try:
            while service.get("/readyz")[0] != 200:
                is_late = time.monotonic() - began > LONGEST_START_S
                check(process.poll() is None and not is_late, f"it is not ready: {log.read_text()[-4000:]}")
                time.sleep(0.1)
            say("ready after", f"{time.monotonic() - began:.1f} s")
            yield process, service
        except Unlike as error:
            raise Unlike(f"{error}\n{log.read_text()[-4000:]}") from None
        finally:
            stop(process)
            process.wait()


def look_at(process: subprocess.Popen[str]) -> None:
    """Check that process 1 has no right at all."""
    lines = Path(f"/proc/{children(process.pid)[0]}/status").read_text().splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    seen = {name: status[name][-1] for name in ("NSpid", "Uid", "Gid", "CapEff", "CapPrm", "NoNewPrivs")}
    say("process 1", seen)
    expected = {
        "NSpid": "1",
        "Uid": str(USER),
        "Gid": str(USER),
        "CapEff": "0" * 16,
        "CapPrm": "0" * 16,
        "NoNewPrivs": "1",
    }
    check(seen == expected, f"process 1 should have {expected}")


def ask(service: Asked) -> None:
    """Ask for advice, which needs a token, and for the devices that the service knows."""
    path = f"/v1/advice?layer=14-1-3-256-128&dtype=float16&layout=nhwc&device={ADVISED_DEVICE}"
    refused, _ = service.get(path, with_token=False)
    status, advice = service.get(path)
    check((refused, status) == (401, 200), f"advice: {refused} without a token, {status} with one: {advice}")
    say(
        "advice", f"{advice['variant']}, {1e3 * advice['time_ms']:.2f} µs {advice['source']}; {refused} without a token"
    )
    _, devices = service.get("/v1/devices")
    say("its devices", ", ".join(device["id"] for device in devices["devices"]))


def convolve(service: Asked) -> None:
    """Ask for a convolution of tensors from outside, and compare it to float64."""
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((2, 16, 14, 14), np.float32), rng.standard_normal((32, 16, 3, 3), np.float32)
    body = io.BytesIO()
    np.save(body, x)
    np.save(body, weight)
    path = f"/v1/convolutions?layer={LAYER}&variant=advised"
    status, answer, summary = service.send(path, body.getvalue(), "application/x-npy")
    check(status == 200, f"the convolution: {status} {answer[:1000]!r}")
    error = float(np.abs(np.load(io.BytesIO(answer)) - reference(x, weight)).max())
    measured = json.loads(summary)
    shown = {name: measured[name] for name in ("variant", "time_ms", "max_error", "n_compared") if name in measured}
    say("a convolution", f"{shown}; largest difference from float64 {error:.1e}")
    check(error < LARGEST_ERROR, f"y is off by {error}")


def reference(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The convolution with "same" padding in float64."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    y: np.ndarray = np.einsum("nchwrs,kcrs->nkhw", windows, weight.astype(np.float64))
    return y


def measure_all(service: Asked) -> None:
    """Every variant on one layer: what ran, and what did not and why."""
    body = json.dumps({"layer": LAYER, "dtype": "float16", "layout": "nhwc", "variant": "all"}).encode()
    status, answer, _ = service.send("/v1/convolutions", body, "application/json")
    check(status == 200, f"all variants: {status} {answer[:1000]!r}")
    best = json.loads(answer)
    attempts = {attempt["variant"]: attempt for attempt in (best, *best["attempts"])}
    say("all variants, float16 nhwc", dict(Counter(attempt["outcome"] for attempt in attempts.values())))
    say("the fastest", f"{best['variant']}, {1e3 * best['time_ms']:.2f} µs")
    wrong = {name: attempt.get("detail") for name, attempt in attempts.items() if attempt["outcome"] not in _WELL}
    check(not wrong, f"variants failed: {wrong}")


def end(process: subprocess.Popen[str]) -> None:
    """Check that SIGTERM ends it, soon and well."""
    began = time.monotonic()
    os.kill(children(process.pid)[0], signal.SIGTERM)
    try:
        status = process.wait(LONGEST_END_S)
    except subprocess.TimeoutExpired:
        raise Unlike(f"SIGTERM did not end it within {LONGEST_END_S:.0f} s") from None
    say("ended by SIGTERM", f"status {status} after {time.monotonic() - began:.1f} s")
    check(status in (0, 128 + signal.SIGTERM), f"its status is {status}")


if __name__ == "__main__":
    sys.exit(main())
