"""The chart: what it makes is what the manifests say, is valid, and what it cannot make it refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from tests.deploy.test_kubernetes import FOLDER, VERSION

CHART: Final = FOLDER.parent / "helm"
OVERLAYS: Final = {
    "base": (),
    "gpu": ("gpu=true",),
    "postgres": ("replicas=3", "databaseSecret=conv-advisor-database"),
    "cluster": ("replicas=3", "databaseSecret=conv-advisor-database", "cluster.workers=1"),
}
"""By the folder of manifests that it makes, what to set."""

Manifest = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def _there_is_helm() -> None:
    if not shutil.which("helm"):
        if os.environ.get("REQUIRE_HELM"):
            pytest.fail("there is no helm, and REQUIRE_HELM is set")
        pytest.skip("there is no helm")


def _helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["helm", *arguments], check=False, capture_output=True, text=True)  # noqa: S607 - found


def _made(*settings: str, release: str = "conv-advisor") -> list[Manifest]:
    chosen = [f"--set={setting}" for setting in settings]
    done = _helm("template", release, CHART, "--kube-version", f"{VERSION}.0", *chosen)
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def _bare(value: Any) -> Any:
    """Without what says whose it is: labels that only a chart gives, and those that kustomize puts everywhere."""
    if isinstance(value, list):
        return [_bare(part) for part in value]
    if not isinstance(value, dict):
        return value
    kept = {key: _bare(part) for key, part in value.items() if not _is_mark(key)}
    return {key: part for key, part in kept.items() if key not in ("labels", "annotations", "matchLabels") or part}


def _is_mark(key: str) -> bool:
    parts = ("name", "instance", "version", "managed-by")
    return key in {f"app.kubernetes.io/{part}" for part in parts} | {"helm.sh/chart", "checksum/settings"}


def _by_name(manifests: list[Manifest]) -> dict[tuple[str, str], Manifest]:
    return {(manifest["kind"], manifest["metadata"]["name"]): _bare(manifest) for manifest in manifests}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_chart_makes_what_the_manifests_say(overlay: str) -> None:
    if not shutil.which("kubectl"):
        pytest.skip("there is no kubectl")
    command = ["kubectl", "kustomize", FOLDER / overlay]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    expected, made = _by_name(list(yaml.safe_load_all(said))), _by_name(_made(*OVERLAYS[overlay]))
    assert set(made) == set(expected)
    for name, manifest in made.items():
        assert _comparable(manifest) == _comparable(expected[name]), name


def _comparable(manifest: Manifest) -> Manifest:
    """Lists of what has names, by their names: their order says nothing."""
    template = manifest["spec"].get("template", {}).get("spec", {}) if "spec" in manifest else {}
    for container in template.get("containers", []):
        for part in ("env", "volumeMounts"):
            container[part] = sorted(container.get(part, []), key=lambda named: str(named["name"]))
    template["volumes"] = sorted(template.get("volumes", []), key=lambda named: str(named["name"]))
    template.get("securityContext", {}).pop("fsGroupChangePolicy", None)
    return manifest


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_the_chart_makes_is_valid_under_any_name(overlay: str) -> None:
    manifests = _made(*OVERLAYS[overlay], release="a-very-long-name-that-someone-chose-for-a-release")
    for manifest in manifests:
        kubernetes_validate.validate(manifest, VERSION, strict=True)
        assert len(manifest["metadata"]["name"]) <= 52, "a StatefulSet's pods add to it"
        assert "namespace" not in manifest["metadata"]


def test_two_releases_do_not_take_each_others_pods() -> None:
    one, other = (_made(*OVERLAYS["cluster"], release=name) for name in ("one", "other"))
    (service,) = (m for m in one if m["kind"] == "Service" and m["metadata"]["name"] == "one")
    labels = [m["spec"]["template"]["metadata"]["labels"] for m in other if "template" in m.get("spec", ())]
    assert labels
    assert not any(service["spec"]["selector"].items() <= pod.items() for pod in labels)


def test_settings_reach_the_server_and_change_its_pods() -> None:
    before, after = _made(), _made("settings.MAX_QUEUE=8", "settings.METRICS=false")
    (told,) = (manifest["data"] for manifest in after if manifest["kind"] == "ConfigMap")
    assert told["CONV_ADVISOR_MAX_QUEUE"] == "8"
    assert told["CONV_ADVISOR_METRICS"] == "false"
    marks = [
        m["spec"]["template"]["metadata"]["annotations"]
        for made in (before, after)
        for m in made
        if m["kind"] == "StatefulSet"
    ]
    assert marks[0] != marks[1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["replicas=2"], "databaseSecret is empty"),
        (["cluster.workers=1"], "databaseSecret is empty"),
        (["replicas=0"], "replicas"),
        (["gpu=yes"], "gpu"),
        (["settings.PORT=9000"], "PORT"),
        (["settings.max_queue=9"], "max_queue"),
        (["databaseSecret=Not_A_Name"], "databaseSecret"),
        (["storage.size=many"], "storage"),
        (["unheard=of"], "unheard"),
    ],
)
def test_values_that_cannot_be_are_refused(settings: list[str], said: str) -> None:
    done = _helm("template", "conv-advisor", CHART, *(f"--set={setting}" for setting in settings))
    assert done.returncode
    assert said in done.stderr


def test_the_chart_has_no_faults_and_is_of_this_version() -> None:
    done = _helm("lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout
    project = tomllib.loads((CHART.parents[1] / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == project["version"]
