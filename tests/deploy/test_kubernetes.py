"""The manifests: valid for one version of Kubernetes, and of one piece with each other and with the application."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from conv_advisor.app.main import create_app
from conv_advisor.app.settings import PREFIX, Settings
from conv_advisor.data.errors import InvalidInput

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
VERSION = "1.33"
FILES = sorted(path for path in FOLDER.rglob("*.yaml") if path.name != "kustomization.yaml")
OVERLAYS = sorted(path.parent for path in FOLDER.rglob("kustomization.yaml"))

Manifest = dict[str, Any]


def _read(path: Path) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def _is_patch(path: Path) -> bool:
    patches = yaml.safe_load((path.parent / "kustomization.yaml").read_text()).get("patches", [])
    return any(patch.get("path") == path.name for patch in patches)


@cache
def _manifests() -> tuple[Manifest, ...]:
    whole = (path for path in FILES if path.parent == FOLDER or not _is_patch(path))
    return tuple(manifest for path in whole for manifest in _read(path))


@cache
def _patches() -> tuple[Manifest, ...]:
    return tuple(m for path in FILES if path.parent != FOLDER and _is_patch(path) for m in _read(path))


def _of_kind(*kinds: str) -> dict[str, Manifest]:
    return {manifest["metadata"]["name"]: manifest for manifest in _manifests() if manifest["kind"] in kinds}


def _pods() -> Iterator[tuple[str, Manifest]]:
    """The pods of every workload, and those of patches, which say a part of one."""
    for manifest in (*_of_kind("StatefulSet", "Deployment").values(), *_patches()):
        yield manifest["metadata"]["name"], manifest["spec"]["template"]


def _containers() -> list[Manifest]:
    return [container for _, pod in _pods() for container in pod["spec"]["containers"]]


WORKLOADS = sorted(_of_kind("StatefulSet", "Deployment"))


@pytest.mark.parametrize("path", [path for path in FILES if path.parent == FOLDER or not _is_patch(path)], ids=str)
def test_each_manifest_is_valid_and_says_nothing_that_kubernetes_does_not_know(path: Path) -> None:
    for manifest in _read(path):
        kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_validation_would_notice() -> None:
    (manifest,) = _read(FOLDER / "base" / "service.yaml")
    manifest["spec"]["port"] = 8000
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, VERSION, strict=True)


@pytest.mark.parametrize("folder", OVERLAYS, ids=lambda folder: folder.name)
def test_each_folder_can_be_built_and_is_valid_as_a_whole(folder: Path) -> None:
    if not shutil.which("kubectl"):
        pytest.skip("there is no kubectl")
    built = subprocess.run(["kubectl", "kustomize", folder], check=True, capture_output=True, text=True).stdout  # noqa: S607 - found
    manifests = list(yaml.safe_load_all(built))
    for manifest in manifests:
        kubernetes_validate.validate(manifest, VERSION, strict=True)
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests]
    assert len(names) == len(set(names))
    (server,) = (manifest for manifest in manifests if manifest["kind"] == "StatefulSet")
    (container,) = server["spec"]["template"]["spec"]["containers"]
    assert container["image"] == ("conv-advisor:gpu" if folder.name == "gpu" else "conv-advisor:cpu")
    assert container["resources"]["limits"].get("nvidia.com/gpu") == (1 if folder.name == "gpu" else None)
    has_database = any(entry["name"] == f"{PREFIX}DATABASE_URL" for entry in container.get("env", []))
    assert has_database == (folder.name in ("postgres", "cluster"))
    assert server["spec"]["replicas"] == (3 if has_database else 1)


@pytest.mark.parametrize("folder", OVERLAYS, ids=lambda folder: folder.name)
def test_every_file_of_a_folder_is_in_its_kustomization(folder: Path) -> None:
    said = yaml.safe_load((folder / "kustomization.yaml").read_text())
    named = {*said["resources"], *(patch["path"] for patch in said.get("patches", []) if "path" in patch)}
    files = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    assert {name for name in named if not name.startswith("../")} == files
    assert all((folder / name).exists() for name in named)


def test_no_manifest_chooses_a_namespace() -> None:
    assert not any("namespace" in manifest["metadata"] for manifest in (*_manifests(), *_patches()))


def test_every_variable_is_a_setting_with_a_value_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    given = dict(_of_kind("ConfigMap")["conv-advisor"]["data"])
    for container in _containers():
        given |= {variable["name"]: variable.get("value", "sqlite://") for variable in container.get("env", [])}
    unknown = {name.removeprefix(PREFIX).lower() for name in given} - set(Settings.__dataclass_fields__.keys())
    assert not unknown
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    from conv_advisor.app.settings import load_settings

    assert load_settings().device == "cpu"
    monkeypatch.setenv(f"{PREFIX}DEVICE", "gpu")
    with pytest.raises(InvalidInput):
        load_settings()


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_pod_is_granted_nothing(name: str) -> None:
    """What Kubernetes calls the restricted standard, and no way to its API."""
    pod = _of_kind("StatefulSet", "Deployment")[name]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"]["memory"]
        assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_pod_is_not_given_the_variables_of_services(name: str) -> None:
    """CONV_ADVISOR_PORT=tcp://..., which Kubernetes sets for a Service of our name, would be read as a setting."""
    assert _of_kind("StatefulSet", "Deployment")[name]["spec"]["template"]["spec"]["enableServiceLinks"] is False


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_selector_finds_its_own_pods_alone(name: str) -> None:
    selector = _of_kind("StatefulSet", "Deployment")[name]["spec"]["selector"]["matchLabels"].items()
    found = [other for other, pod in _pods() if selector <= pod.get("metadata", {}).get("labels", {}).items()]
    assert found == [name]


def test_services_and_policies_find_pods_and_ports() -> None:
    pods = [pod for _, pod in _pods() if "metadata" in pod]
    for service in _of_kind("Service").values():
        wanted = service["spec"]["selector"].items()
        (pod,) = (pod for pod in pods if wanted <= pod["metadata"]["labels"].items())
        ports = {port["name"]: port["containerPort"] for c in pod["spec"]["containers"] for port in c["ports"]}
        assert all(ports[port["targetPort"]] == port["port"] for port in service["spec"]["ports"])
    labels = {label for pod in pods for label in pod["metadata"]["labels"].items()}
    for guarded in _of_kind("PodDisruptionBudget").values():
        assert set(guarded["spec"]["selector"]["matchLabels"].items()) <= labels
    for policy in _of_kind("NetworkPolicy").values():
        selector = policy["spec"]["podSelector"]
        assert set(selector.get("matchLabels", {}).items()) <= labels
        for expression in selector.get("matchExpressions", []):
            assert {(expression["key"], value) for value in expression["values"]} <= labels


def test_a_stateful_set_has_its_service() -> None:
    services = _of_kind("Service")
    assert all(found["spec"]["serviceName"] in services for found in _of_kind("StatefulSet").values())


def test_config_maps_and_secrets_exist_with_the_keys_that_are_read() -> None:
    secrets = {name: set(secret["stringData"]) for name, secret in _of_kind("Secret").items()}
    for _, pod in _pods():
        for volume in pod["spec"].get("volumes", []):
            if "secret" in volume:
                assert volume["secret"]["secretName"] in secrets
        for container in pod["spec"]["containers"]:
            for source in container.get("envFrom", []):
                assert source["configMapRef"]["name"] in _of_kind("ConfigMap")
            for variable in container.get("env", []):
                if "valueFrom" in variable:
                    reference = variable["valueFrom"]["secretKeyRef"]
                    assert reference["key"] in secrets[reference["name"]]


def test_every_file_that_a_setting_names_is_mounted_from_a_secret_that_has_it() -> None:
    secrets = {name: set(secret["stringData"]) for name, secret in _of_kind("Secret").items()}
    named = 0
    for workload, pod in _pods():
        volumes = {volume["name"]: volume.get("secret") for volume in pod["spec"].get("volumes", [])}
        for container in pod["spec"]["containers"]:
            values = [variable.get("value", "") for variable in container.get("env", [])]
            values += _of_kind("ConfigMap")["conv-advisor"]["data"].values() if "envFrom" in container else []
            mounts = {mount["mountPath"]: volumes.get(mount["name"]) for mount in container.get("volumeMounts", [])}
            for path in (Path(value) for value in values if value.startswith("/")):
                assert path.name in secrets[mounts[str(path.parent)]["secretName"]], (workload, path)
                named += 1
    assert named >= 10


def test_every_volume_that_is_mounted_is_declared_and_what_the_image_writes_to_is_mounted() -> None:
    for name, workload in _of_kind("StatefulSet", "Deployment").items():
        pod = workload["spec"]["template"]["spec"]
        claims = workload["spec"].get("volumeClaimTemplates", [])
        declared = {volume["name"] for volume in pod["volumes"]} | {claim["metadata"]["name"] for claim in claims}
        for container in pod["containers"]:
            mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
            assert set(mounted.values()) == declared, name
            assert {"/tmp", "/var/lib/conv-advisor"} <= set(mounted)  # noqa: S108 - a path in the container


def test_probes_ask_for_routes_that_there_are_at_ports_that_there_are() -> None:
    routes = set(create_app(Settings()).openapi()["paths"])
    asked = 0
    for container in _containers():
        ports = {port["name"] for port in container.get("ports", [])}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            found = container.get(probe, {})
            where = found.get("httpGet") or found.get("tcpSocket")
            if where:
                assert where["port"] in ports
                assert where.get("path", "/livez") in routes
                asked += 1
    assert asked >= 5


def test_the_server_listens_where_the_image_says() -> None:
    dockerfile = (FOLDER.parents[1] / "Dockerfile").read_text()
    (port,) = _of_kind("StatefulSet")["conv-advisor"]["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert f"CONV_ADVISOR_PORT={port['containerPort']}\n" in dockerfile
    assert f"EXPOSE {port['containerPort']}\n" in dockerfile


def test_the_cluster_is_reached_by_the_name_and_port_of_its_service() -> None:
    service = _of_kind("Service")["conv-advisor-scheduler"]
    address = f"tls://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    variables = [v for container in _containers() for v in container.get("env", [])]
    assert {v["value"] for v in variables if v["name"] == f"{PREFIX}SCHEDULER"} == {address}
