"""Settings from the environment: defaults, overrides, and what a bad one says."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from conv_advisor.app import settings
from conv_advisor.app.cli import cli
from conv_advisor.app.cli.settings import settings_schema
from conv_advisor.app.settings import PREFIX, Settings, load_settings
from conv_advisor.data.errors import InvalidInput


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in list(os.environ):
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)


def test_defaults_are_for_one_machine_and_its_user_wherever_it_is_started(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", "/home/somebody/data")
    monkeypatch.chdir(tmp_path)
    settings = load_settings()
    assert (settings.host, settings.port, settings.device) == ("127.0.0.1", 8000, "auto")
    assert settings.store_url == "sqlite:////home/somebody/data/conv-advisor/conv-advisor.db"
    assert settings.models_home == Path("/home/somebody/data/conv-advisor")


def test_the_environment_decides_and_an_override_wins(monkeypatch):
    monkeypatch.setenv("CONV_ADVISOR_HOME", "/srv/advice")
    monkeypatch.setenv("CONV_ADVISOR_PORT", "9000")
    assert load_settings().store_url == "sqlite:////srv/advice/conv-advisor.db"
    assert (load_settings(port=None).port, load_settings(port=9001).port) == (9000, 9001)


def test_another_database_may_be_named(monkeypatch):
    monkeypatch.setenv("CONV_ADVISOR_DATABASE_URL", "postgresql://db/advice")
    assert load_settings().store_url == "postgresql://db/advice"


@pytest.mark.parametrize("url", ["advice.db", "mysql://user:hunter2@db/advice", "postgresql:/hunter2"])
def test_a_database_that_is_none_of_ours_is_refused_without_its_password(monkeypatch, url):
    monkeypatch.setenv("CONV_ADVISOR_DATABASE_URL", url)
    with pytest.raises(InvalidInput) as caught:
        load_settings()
    assert str(caught.value).startswith("CONV_ADVISOR_DATABASE_URL is 'not shown'; allowed: postgresql://")
    assert "hunter2" not in repr(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"TLS_CERTIFICATE": "/nowhere.pem"}, "tls_certificate is '/nowhere.pem'; allowed: a PEM file"),
        ({"TLS_CERTIFICATE": __file__}, "test_settings.py'; allowed: a PEM file"),
        ({"TLS_CERTIFICATE": __file__, "TLS_KEY": "/nowhere.pem"}, "test_settings.py, tls_key /nowhere.pem'; allowed"),
        ({"TLS_KEY": "/nowhere.pem"}, "tls_key is '/nowhere.pem'; allowed: only with tls_certificate"),
    ],
)
def test_https_that_cannot_be_spoken_is_refused_by_file(monkeypatch, tmp_path, given, said):
    for name, value in ({"HOME": str(tmp_path), "PORT": "0", "DEVICE": "cpu"} | given).items():
        monkeypatch.setenv(PREFIX + name, value)
    done = CliRunner().invoke(cli, ["serve"])
    assert isinstance(done.exception, InvalidInput)
    assert said in str(done.exception)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "65536"),
        ("PORT", "http"),
        ("DEVICE", "gpu"),
        ("DEVICE", "cuda"),
        ("MAX_QUEUE", "0"),
        ("CONVOLUTION_DEADLINE_S", "0"),
        ("JOB_DEADLINE_S", "nan"),
        ("START_TIMEOUT_S", "inf"),
        ("LOG_LEVEL", "loud"),
        ("MAX_BODY_BYTES", "1e3"),
    ],
)
def test_a_bad_value_is_named(monkeypatch, name, value):
    monkeypatch.setenv(f"CONV_ADVISOR_{name}", value)
    with pytest.raises(InvalidInput, match=f"^CONV_ADVISOR_{name} is '{value}'; allowed: "):
        load_settings()


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("ALLOWED_HOSTS", ",,", "',,'"),
        ("ALLOWED_HOSTS", " , ", "' , '"),
        ("TRUSTED_PROXIES", ",", "','"),
        ("TOKENS", ";;", "'not shown'"),
        ("TOKENS", " \n;", "'not shown'"),
    ],
)
def test_a_list_of_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str, shown: str) -> None:
    """It would allow any host or caller, and trust no proxy, without a word."""
    monkeypatch.setenv(f"{PREFIX}{name}", value)
    with pytest.raises(InvalidInput, match=f"^{PREFIX}{name} is {shown}; allowed: .* separated by "):
        load_settings()


def test_an_empty_list_and_one_with_a_comma_too_many_are_none_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ALLOWED_HOSTS", "TRUSTED_PROXIES", "TOKENS"):
        monkeypatch.setenv(f"{PREFIX}{name}", "")
    assert (load_settings(host="0.0.0.0").hosts, load_settings().trusted_proxies) == (("*",), "")  # noqa: S104 - any
    monkeypatch.setenv(f"{PREFIX}ALLOWED_HOSTS", "advice.example.org, ,")
    assert load_settings().hosts == ("advice.example.org",)


def test_a_bad_override_is_named_as_its_user_wrote_it():
    with pytest.raises(InvalidInput, match=r"^port is -1; allowed: "):
        load_settings(port=-1)


def test_a_misspelt_setting_is_refused(monkeypatch):
    monkeypatch.setenv("CONV_ADVISOR_PROT", "9000")
    with pytest.raises(InvalidInput, match=r"CONV_ADVISOR_PROT .* CONV_ADVISOR_PORT"):
        load_settings()


@pytest.mark.parametrize("name", ["CONV_ADVISOR_PLANS", "CONV_ADVISOR_DEVICES"])
def test_variables_that_are_read_elsewhere_stop_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "given")
    assert load_settings() == Settings()
    assert jsonschema.Draft202012Validator(settings_schema()).is_valid({name: "given"})
    monkeypatch.setenv(f"{name}X", "given")
    with pytest.raises(InvalidInput, match=f"{name}X is 'set'; allowed: .*{name}"):
        load_settings()


def test_a_file_of_the_secrets_is_read_like_a_variable_and_after_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(settings, "SECRETS", tmp_path)
    (tmp_path / f"{PREFIX}DATABASE_URL").write_text("postgresql://from-a-file/advice\n")
    (tmp_path / "tokens").write_text("no setting")
    (tmp_path / "kubernetes.io").mkdir()
    assert load_settings().database_url == "postgresql://from-a-file/advice"
    monkeypatch.setenv(f"{PREFIX}DATABASE_URL", "postgresql://from-the-environment/advice")
    assert load_settings().database_url == "postgresql://from-the-environment/advice"
    monkeypatch.setattr(settings, "SECRETS", tmp_path / "nowhere")
    monkeypatch.delenv(f"{PREFIX}DATABASE_URL")
    assert load_settings().database_url == ""


@pytest.mark.parametrize("name", ["conv_advisor_port", "Conv_Advisor_Port"])
def test_capitals_of_a_variable_do_not_matter(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "9000")
    assert load_settings().port == 9000
    monkeypatch.setenv(name, "none")
    with pytest.raises(InvalidInput, match=f"^{name} is 'none'; allowed: "):
        load_settings()


def test_a_variable_that_others_named_counts_less_than_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(settings, "SECRETS", tmp_path)
    (tmp_path / "OTEL_EXPORTER_OTLP_ENDPOINT").write_text("http://theirs-in-a-file:4318\n")
    assert load_settings().otlp_endpoint == "http://theirs-in-a-file:4318"
    (tmp_path / f"{PREFIX}OTLP_ENDPOINT").write_text("http://ours-in-a-file:4318\n")
    assert load_settings().otlp_endpoint == "http://ours-in-a-file:4318"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "theirs")
    with pytest.raises(InvalidInput, match=r"^OTEL_EXPORTER_OTLP_ENDPOINT is 'theirs'; allowed: an address"):
        load_settings()


def test_the_environment_alone_is_read_by_load_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{PREFIX}PORT", "9000")
    assert settings.Settings().port == 8000


@pytest.mark.parametrize(("word", "meant"), [("1", True), ("yes", True), ("off", False), ("FALSE", False)])
def test_a_switch_takes_the_usual_words(monkeypatch: pytest.MonkeyPatch, word: str, meant: bool) -> None:
    monkeypatch.setenv(f"{PREFIX}METRICS", word)
    assert load_settings().metrics is meant


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("PORT", "-1", "an integer from 0 to 65535"),
        ("MAX_QUEUE", "many", "an integer from 1"),
        ("START_TIMEOUT_S", "0", "a number above 0 to 2592000"),
        ("RATE_LIMIT_PER_S", "-1", "a number from 0 to 1000000"),
        ("LOG_FORMAT", "xml", "text, json"),
        ("METRICS", "2", "1, true, yes, on, 0, false, no, off"),
        ("HOST", "", "an address"),
        ("DEVICE", "cuda:0\n", "auto, cpu, cuda:0, cuda:1 and so on"),
        ("SCHEDULER", "db:8786", "tls://host:port, or tcp://host:port on loopback"),
        ("OTLP_ENDPOINT", "collector", "an address that begins with http:// or https://"),
    ],
)
def test_what_is_allowed_is_said_in_words(monkeypatch: pytest.MonkeyPatch, name: str, value: str, allowed: str) -> None:
    monkeypatch.setenv(f"{PREFIX}{name}", value)
    with pytest.raises(InvalidInput) as caught:
        load_settings()
    assert str(caught.value).endswith(f"; allowed: {allowed}")


def test_the_environment_has_a_schema_that_says_what_each_variable_is(monkeypatch):
    schema = settings_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    fields = schema["properties"]
    assert set(fields) == {f"{PREFIX}{name.upper()}" for name in Settings.__dataclass_fields__}
    assert all(field["description"] and ("type" in field or "enum" in field) for field in fields.values())
    check = jsonschema.Draft202012Validator(schema).is_valid
    assert check({"CONV_ADVISOR_PORT": 9000, "CONV_ADVISOR_DEVICE": "cuda:1", "PATH": "/bin"})
    for wrong in ({"CONV_ADVISOR_PORT": 65536}, {"CONV_ADVISOR_DEVICE": "gpu"}, {"CONV_ADVISOR_PROT": 1}):
        assert not check(wrong)


def test_the_command_shows_what_is_in_force_and_no_secret(monkeypatch):
    monkeypatch.setenv("CONV_ADVISOR_MAX_QUEUE", "9")
    monkeypatch.setenv("CONV_ADVISOR_TOKENS", "me read sha256:0a1b")
    shown = CliRunner().invoke(cli, ["settings"])
    assert shown.exit_code == 0
    assert "# Jobs that may wait for one worker.\nCONV_ADVISOR_MAX_QUEUE=9\n" in shown.stdout
    assert "0a1b" not in shown.stdout
    assert json.loads(CliRunner().invoke(cli, ["settings", "--json-schema"]).stdout) == settings_schema()
