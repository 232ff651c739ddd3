"""Build the images: ``python -m deploy.image.build cpu gpu``, as root, with buildah.

The stages run in chroots, so no engine is needed. Where the registry of the base cannot be reached, the base is made by
mmdebstrap from Debian's packages. With a Docker engine, ``docker build --target cpu .`` does the same.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from deploy.image.buildah import Buildah
from deploy.image.sizes import write_sizes

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LOCAL_BASE = "localhost/conv-advisor-base"
TARGETS = ("cpu", "gpu")
_PULL_S = 120.0


def declared_base() -> str:
    """The base that the Dockerfile names."""
    match = re.search(r"^ARG BASE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    if match is None:
        raise SystemExit("Dockerfile: there is no 'ARG BASE=...'")
    return match[1]


def find_base(buildah: Buildah) -> str:
    """The base that the Dockerfile names, or one made here where its registry cannot be reached."""
    try:
        buildah.call("pull", "--quiet", f"docker://{declared_base()}", timeout_s=_PULL_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        sys.stdout.write(f"{declared_base()} cannot be pulled: making {LOCAL_BASE} with mmdebstrap\n")
        return make_base(buildah)
    return declared_base()


def make_base(buildah: Buildah) -> str:
    """Make a Debian with apt and import it; its name.

    mmdebstrap, told no mirror, takes Debian's own, with the updates and security fixes of a stable suite.
    """
    with tempfile.TemporaryDirectory(prefix="conv-advisor-base-") as folder:
        tar = str(Path(folder) / "base.tar")
        subprocess.run(["mmdebstrap", "--quiet", "--variant=apt", "bookworm", tar], check=True)
        container = buildah.call("from", "scratch")
        buildah.call("add", "--quiet", container, tar, "/")
        buildah.call("commit", "--quiet", "--rm", container, LOCAL_BASE)
    return LOCAL_BASE


def build(buildah: Buildah, target: str, base: str, ca_bundle: Path | None) -> str:
    """Build one image; its name."""
    name = image_name(target)
    secret = ["--secret", f"id=ca_bundle,src={ca_bundle}"] if ca_bundle else []
    buildah.call(
        *("bud", "--isolation", "chroot", "--format", "docker", "--layers", "--quiet"),
        *("--build-arg", f"BASE={base}", *secret, "--target", target, "--tag", name, str(ROOT)),
    )
    return name


def image_name(target: str) -> str:
    """What an image is called: ``conv-advisor:cpu``."""
    return f"localhost/conv-advisor:{target}"


def main() -> int:
    """Build what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="+", choices=TARGETS)
    parser.add_argument("--base", help="image to build on; default: the Dockerfile's, or one made by mmdebstrap")
    parser.add_argument("--store", type=Path, help="folder of images and layers; default: the system's")
    parser.add_argument(
        "--ca-bundle",
        type=Path,
        default=os.environ.get("PIP_CERT"),
        help="certificates of a proxy that signs for others; default: pip's own, PIP_CERT",
    )
    parser.add_argument("--sizes", action="store_true", help="print what the images hold, by layer and by package")
    chosen = parser.parse_args()
    buildah = Buildah(chosen.store)
    base = chosen.base or find_base(buildah)
    for target in chosen.targets:
        name = build(buildah, target, base, chosen.ca_bundle)
        sys.stdout.write(f"built {name}\n")
        if chosen.sizes:
            write_sizes(buildah, name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
