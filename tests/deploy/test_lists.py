"""The lists of what is left out of the images, and what says what they weigh."""

from __future__ import annotations

import io
import re
import sysconfig
import tarfile
from importlib import metadata
from pathlib import Path

import numpy  # noqa: F401 - it is looked for among what is mapped
import pytest

from deploy.image import build, libraries, prune
from deploy.image.sizes import LAYERS, package_of, read_layer

FOLDER = Path(prune.__file__).parent
LISTS = sorted(FOLDER.glob("unused-*.txt"))


@pytest.mark.parametrize("path", [path for path in LISTS if path.name != "unused-packages.txt"], ids=lambda p: p.name)
def test_every_rule_has_a_reason_and_stands_once(path: Path) -> None:
    rules = prune.read_rules(path)
    assert len(rules) > 10
    assert len({rule.pattern for rule in rules}) == len(rules)


@pytest.mark.parametrize("line", ["lib/*.a", "/lib/*.a  # absolute", "../lib  # outside", "  # nothing"])
def test_a_rule_without_a_reason_or_out_of_its_folder_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "rules.txt").write_text(f"ok  # a reason\n{line}\n")
    if line.strip().startswith("#"):
        line = f" {line}"
    with pytest.raises(ValueError, match=r"rules\.txt:2"):
        prune.read_rules(tmp_path / "rules.txt")


def test_what_matches_goes_and_the_rest_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    (root / "lib" / "tests").mkdir(parents=True)
    (root / "lib" / "tests" / "test_a.py").write_bytes(b"a" * 2_000_000)
    (root / "lib" / "a.py").write_text("kept")
    (root / "lib" / "link.a").symlink_to(root / "nowhere")
    (tmp_path / "rules.txt").write_text("**/tests  # tests\nlib/*.a  # static libraries\n")
    assert prune.main(str(tmp_path / "rules.txt"), str(root)) == 0
    assert [path.name for path in sorted(root.rglob("*"))] == ["lib", "a.py"]
    assert "2.00 MB  **/tests  (tests)" in capsys.readouterr().out


def test_a_rule_that_matches_nothing_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rules.txt").write_text("lib/*.a  # static libraries\n")
    assert prune.main(str(tmp_path / "rules.txt"), str(tmp_path)) == 1
    assert "nothing matches lib/*.a" in capsys.readouterr().err


def test_no_test_of_a_package_is_in_the_images() -> None:
    """`inside.py` refuses an image that has any; this finds them where what images are made of is installed."""
    site = Path(sysconfig.get_path("purelib"))
    shipped = re.findall(r"^([\w.-]+)==", (build.ROOT / "constraints" / "cluster.txt").read_text(), re.MULTILINE)
    unused = {rule.pattern for rule in prune.read_rules(FOLDER / "unused-packages.txt")}
    files = [file for name in set(shipped) - unused for file in files_of(name)]
    tests = [site / file for file in files if {"test", "tests"} & set(file.parent.parts)]
    rules = [rule.pattern.partition("/site-packages/")[2] for rule in prune.read_rules(FOLDER / "unused-python.txt")]
    left_out = {path for pattern in rules if pattern and "*." not in pattern for path in site.glob(pattern)}
    assert len(tests) > 1000
    assert [path for path in tests if not left_out & set(path.parents)] == []


def files_of(package: str) -> list[metadata.PackagePath]:
    """What a package has installed; nothing where it is not."""
    try:
        return metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return []


def test_the_base_is_the_dockerfile_s_and_each_target_has_its_layers_named() -> None:
    assert build.declared_base().startswith("debian:12")
    text = (build.ROOT / "Dockerfile").read_text()
    shared = text.partition("FROM scratch AS runtime")[2].partition("\nFROM ")[0].count("COPY --from=")
    for target in build.TARGETS:
        own = text.partition(f"FROM runtime AS {target}\n")[2].partition("\nFROM ")[0].count("COPY --from=")
        assert len(LAYERS[target]) == shared + own


SITE = "opt/conv-advisor/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("path", "package"),
    [
        (f"{SITE}/numpy/__init__.py", "numpy"),
        (f"./{SITE}/numpy.libs/libopenblas.so", "numpy"),
        (f"{SITE}/numpy-2.4.6.dist-info/METADATA", "numpy"),
        (f"{SITE}/nvidia/cu13/lib/libcublasLt.so.13", "nvidia/cu13/lib/libcublasLt"),
        (f"{SITE}/nvidia/cudnn/lib/libcudnn_adv.so.9", "nvidia/cudnn/lib/libcudnn_adv"),
        ("usr/lib/python3.11/json/decoder.py", "Python"),
        ("usr/bin/python3.11", "Python"),
        ("usr/lib/x86_64-linux-gnu/libc.so.6", "Debian"),
    ],
)
def test_a_file_counts_for_its_package(path: str, package: str) -> None:
    assert package_of(path) == package


def test_a_layer_weighs_what_its_files_weigh(tmp_path: Path) -> None:
    path = tmp_path / "layer.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, size in ((f"{SITE}/numpy/a.py", 1000), (f"{SITE}/numpy.libs/b.so", 500), ("etc/passwd", 10)):
            member = tarfile.TarInfo(name)
            member.size = size
            tar.addfile(member, io.BytesIO(b"0" * size))
    layer = read_layer(path, "packages", 77)
    assert (layer.name, layer.file_bytes, layer.pulled_bytes) == ("packages", 1510, 77)
    assert layer.by_package == {"numpy": 1500, "Debian": 10}


def test_what_is_mapped_is_found() -> None:
    assert any(path.name.startswith("_multiarray_umath") for path in libraries.mapped())
    assert all(".so" in path.name for path in libraries.installed())
