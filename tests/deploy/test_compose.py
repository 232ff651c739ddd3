"""compose.yaml: of one piece with itself, the Dockerfile and the application; valid, where Docker is there to ask."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from conv_advisor.app.guard.tokens import Keyring, make_token
from conv_advisor.app.settings import PREFIX, Settings
from conv_advisor.app.wire.caller import Caller, Scope

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROFILES = ("cpu", "gpu", "postgres", "cluster", "metrics")
SERVERS = ("cpu", "gpu", "with-postgres", "with-cluster")
OURS = (*SERVERS, "scheduler", "worker")


def _targets(service: dict[str, Any]) -> dict[str, str]:
    """Where a service finds each of its secrets, by its name below /run/secrets."""
    secrets = (s if isinstance(s, dict) else {"source": s} for s in service.get("secrets", []))
    return {secret.get("target", secret["source"]): secret["source"] for secret in secrets}


def test_there_is_a_profile_for_each_way_to_run_it() -> None:
    assert {profile for service in SERVICES.values() for profile in service["profiles"]} == set(PROFILES)


@pytest.mark.parametrize("profile", PROFILES)
def test_compose_takes_it(profile: str) -> None:
    docker = shutil.which("docker")
    if not docker or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("there is no docker compose")
    command = [docker, "compose", "--file", ROOT / "compose.yaml", "--profile", profile, "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_granted_nothing_that_it_does_not_need(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "/tmp" in service["tmpfs"]  # noqa: S108 - a path in the container
    assert ("cap_add" in service) == (name == "postgres")
    assert "privileged" not in service


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_names_is_declared(name: str) -> None:
    service = SERVICES[name]
    assert set(_targets(service).values()) <= set(COMPOSE["secrets"])
    assert set(service["networks"]) <= set(COMPOSE["networks"])
    assert set(service.get("depends_on", [])) <= set(SERVICES)
    volumes = {volume.partition(":")[0] for volume in service.get("volumes", [])}
    assert {volume for volume in volumes if not volume.startswith(".")} <= set(COMPOSE["volumes"])


@pytest.mark.parametrize("name", SERVICES)
def test_files_of_ours_that_a_service_mounts_are_there_and_cannot_be_written(name: str) -> None:
    for volume in (volume for volume in SERVICES[name].get("volumes", []) if volume.startswith(".")):
        source, _, mode = volume.split(":")
        assert (ROOT / source).exists(), source
        assert mode == "ro"


def test_prometheus_scrapes_the_server_with_its_token_and_grafana_asks_prometheus() -> None:
    (job,) = yaml.safe_load((ROOT / "deploy/compose/prometheus.yml").read_text())["scrape_configs"]
    (static,) = job["static_configs"]
    (host, port) = static["targets"][0].split(":")
    assert all(SERVICES[name]["networks"]["front"]["aliases"] == [host] for name in SERVERS)
    assert all(SERVICES[name]["ports"][0].endswith(f":{port}") for name in SERVERS)
    assert job["authorization"]["credentials_file"].removeprefix("/run/secrets/") in _targets(SERVICES["prometheus"])
    (source,) = yaml.safe_load((ROOT / "deploy/compose/grafana-datasource.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((ROOT / "deploy/compose/grafana-dashboards.yml").read_text())["providers"]
    assert f"./deploy/grafana:{provider['options']['path']}:ro" in SERVICES["grafana"]["volumes"]


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_loopback_alone(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


@pytest.mark.parametrize("name", OURS)
def test_its_variables_are_settings_and_its_files_are_secrets(name: str) -> None:
    service = SERVICES[name]
    variables = service["environment"]
    assert {variable.removeprefix(PREFIX).lower() for variable in variables} <= set(
        Settings.__dataclass_fields__.keys()
    )
    settings = [target for target in _targets(service) if target.startswith(PREFIX)]
    assert {target.removeprefix(PREFIX).lower() for target in settings} <= set(Settings.__dataclass_fields__.keys())
    files = {value for value in variables.values() if value.startswith("/")}
    assert files <= {f"/run/secrets/{target}" for target in _targets(service)}


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_asks_for_tokens(name: str) -> None:
    assert SERVICES[name]["environment"][f"{PREFIX}TOKENS_FILE"] == "/run/secrets/tokens"


def test_no_secret_stands_in_a_variable() -> None:
    text = (ROOT / "compose.yaml").read_text()
    assert not re.search(r"^\s*\w*(PASSWORD|SECRET|TOKEN)\w*: (?!/run/secrets/)", text, re.MULTILINE)
    assert "://conv_advisor:" not in text


@pytest.mark.parametrize("name", OURS)
def test_its_image_is_a_target_of_the_dockerfile(name: str) -> None:
    service = SERVICES[name]
    target = service["build"]["target"]
    assert service["image"] == f"conv-advisor:{target}"
    assert re.search(rf"^FROM \w+ AS {target}$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert ("deploy" in service) == (target == "gpu")


def test_the_database_is_out_of_reach_from_outside() -> None:
    assert SERVICES["postgres"]["networks"] == ["back"]
    assert "ports" not in SERVICES["postgres"]
    assert COMPOSE["networks"]["back"] == {"internal": True}


def test_secrets_are_made_where_they_are_looked_for_and_git_ignores_them(tmp_path: Path) -> None:
    if not shutil.which("openssl"):
        pytest.skip("there is no openssl")
    (tmp_path / "deploy").mkdir()
    script = shutil.copy(ROOT / "deploy" / "secrets.sh", tmp_path / "deploy")
    environment = {"PATH": "/usr/bin:/bin"}
    for _ in range(2):
        subprocess.run(["/bin/sh", script], env=environment, check=True)
        made = {path.name: path.read_text() for path in (tmp_path / "deploy" / "secrets").iterdir()}
        named = {Path(secret["file"]).name for secret in COMPOSE["secrets"].values()}
        assert named <= set(made)
        assert (made["my_token"] in made["tokens"], len(made["tokens"].splitlines())) == (False, 2)
        keyring = Keyring(made["tokens"])
        assert keyring.find(made["my_token"]) == Caller("me", frozenset(Scope))
        assert keyring.find(made["prometheus_token"]) == Caller("prometheus", frozenset({Scope.READ}))
        assert len(made["my_token"]) == len(make_token())
        assert f":{made['postgres_password'].strip()}@" in made["database_url"]
    assert "deploy/secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    chain = ["openssl", "verify", "-CAfile", "cluster_ca", "cluster_cert"]
    subprocess.run(chain, cwd=tmp_path / "deploy" / "secrets", check=True, capture_output=True)
