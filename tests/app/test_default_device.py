"""The device that is advised on where none is named: configured, the worker's, or the one that most is known of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import conv_advisor
from conv_advisor.app.advice import library
from conv_advisor.app.advice.local import Local
from conv_advisor.app.cli import cli
from conv_advisor.app.main import create_app
from conv_advisor.app.settings import PREFIX, Settings, load_settings
from conv_advisor.app.workers.engine import Engine
from conv_advisor.data.errors import InvalidInput, UnknownDevice
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.store import Store
from conv_advisor.models.registry.on_disk import Registry
from tests.app.serving import GPU, LAYER, SMALL, TIMES_MS, Client, keep_tree, recording, serving, small_tree

FEW, MANY = replace(GPU, id="a-gpu"), replace(GPU, id="b-gpu", name="The other GPU")
CPU = replace(GPU, id="cpu", name="A CPU", kind="cpu")

Host = Callable[..., AbstractContextManager[Client]]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No tree ships, and the library has seen no home yet."""
    monkeypatch.setitem(Registry.__init__.__kwdefaults__, "shipped", Path("/nowhere"))
    library._local.cache_clear()
    yield
    library._local.cache_clear()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Trees of two GPUs, of which the second by name was measured more, and a CPU that was measured most."""
    for device in (FEW, MANY, CPU):
        keep_tree(tmp_path, small_tree(TIMES_MS if device is not CPU else {"cpu.direct": 1.0}, device))
    layers = [SMALL, *(ConvProblem.parse(f"7-1-3-{k}-64") for k in (8, 16, 24))]
    with Store(Settings(home=tmp_path).store_url) as store:
        for device, count in ((FEW, 1), (MANY, 2), (CPU, 4)):
            store.append(replace(row, device=device) for layer in layers[:count] for row in recording(layer))
    return tmp_path


@contextmanager
def on_a_cpu(home: Path, **changes: Any) -> Iterator[Client]:
    """The application on a host without a GPU."""
    settings, opener = Settings(home=home, **changes), "tests.fakes:open_nothing"
    app = create_app(settings, open_engine=lambda _: Engine("cpu", opener=opener), timings=home / "nothing")
    with closing(Client(app)) as client:
        yield client


def test_without_a_gpu_it_is_the_one_with_the_most_measurements(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with on_a_cpu(home) as client:
        assert client.get(f"/v1/advice?layer={LAYER}").json()["device"] == MANY.id
    monkeypatch.setenv(f"{PREFIX}HOME", str(home))
    assert conv_advisor.advise(LAYER).device_id == MANY.id
    told = CliRunner().invoke(cli, ["advise", LAYER, "--json"])
    assert json.loads(told.stdout)["device"] == MANY.id


@pytest.mark.parametrize("host", [on_a_cpu, serving])
def test_the_one_that_is_configured_comes_first(home: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    with host(home, advice_device=FEW.id) as client:
        client.await_(client.app.state.service.worker.opened())
        assert client.get(f"/v1/advice?layer={LAYER}").json()["device"] == FEW.id
        assert client.post("/v1/advice", json={"layers": [LAYER]}).json()["device"] == FEW.id
    monkeypatch.setenv(f"{PREFIX}HOME", str(home))
    monkeypatch.setenv(f"{PREFIX}ADVICE_DEVICE", FEW.id)
    assert conv_advisor.advise(LAYER).device_id == FEW.id


def test_the_worker_s_own_gpu_comes_before_one_that_more_is_known_of(home: Path) -> None:
    with serving(home) as client:
        client.await_(client.app.state.service.worker.opened())
        assert client.get(f"/v1/advice?layer={LAYER}").json()["device"] == GPU.id


def test_a_device_that_gets_a_tree_is_counted_too(home: Path) -> None:
    local = Local(Settings(home=home))
    third = replace(GPU, id="c-gpu")
    with Store(local.settings.store_url) as store:
        for k in range(8, 48, 8):
            store.append(replace(row, device=third) for row in recording(ConvProblem.parse(f"7-1-3-{k}-64")))
    assert Local(local.settings).known.asked_id() == MANY.id  # no tree, no advice for whoever names nothing
    keep_tree(home, small_tree(TIMES_MS, third))
    assert Local(local.settings).known.asked_id() == third.id


def test_a_cpu_where_no_gpu_has_a_tree_and_nothing_where_nothing_has(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    with pytest.raises(UnknownDevice):
        _ = Local(settings).known.asked_id()
    keep_tree(tmp_path, small_tree({"cpu.direct": 1.0}, CPU))
    assert Local(settings).known.asked_id() == CPU.id


def test_a_device_that_is_no_id_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{PREFIX}ADVICE_DEVICE", "../h200")
    with pytest.raises(InvalidInput, match="CONV_ADVISOR_ADVICE_DEVICE"):
        load_settings()
