"""Advice for a GPU that nobody measured: by any of its names, alike everywhere, and told as what it is."""

from __future__ import annotations

import csv
import io
import json
import pickle
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from typer.testing import CliRunner

import conv_advisor
from conv_advisor.app.advice import library
from conv_advisor.app.cli import cli
from conv_advisor.app.cli.measure import _advised
from conv_advisor.app.main import create_app
from conv_advisor.app.service import devices
from conv_advisor.app.settings import Settings
from conv_advisor.app.wire.answers.catalogue import DevicesAnswer
from conv_advisor.data.errors import InvalidInput, UnknownDevice, WorkerError
from conv_advisor.data.gpus import gpus
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.data.records import Records
from conv_advisor.models.registry.on_disk import Registry
from tests.app.serving import GPU, LAYER, TIMES_MS, Client, serving, small_tree
from tests.processes import eventually

H200 = "nvidia-h200"
H100, A100, T4 = "nvidia-h100-80gb-hbm3", "nvidia-a100-sxm4-80gb", "tesla-t4"
ASKED = {"layer": "15-1-3-256-128", "dtype": "float16", "layout": "nhwc"}
"""A layer that no GPU has measured."""


def refuse(_settings: Settings) -> Any:
    raise WorkerError("no worker here")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Client]:
    client = Client(create_app(Settings(home=home), open_engine=refuse))
    yield client
    client.close()


@pytest.fixture(scope="module", autouse=True)
def _at_home(home: Path) -> Iterator[None]:
    """Library and command line have the home of the server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONV_ADVISOR_HOME", str(home))
        library._local.cache_clear()
        yield
    library._local.cache_clear()


def told(*arguments: str) -> str:
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(("name", "device_id"), [("h100", H100), ("A100", A100), ("Tesla T4", T4)])
def test_library_server_and_command_line_answer_alike(server: Client, name: str, device_id: str) -> None:
    served = server.get("/v1/advice", params={**ASKED, "device": name}).json()
    options = ["--dtype", "float16", "--layout", "nhwc", "--device", name, "--json"]
    advice = conv_advisor.advise(ASKED["layer"], dtype="float16", layout="nhwc", device=name)
    assert advice.to_dict() == served == json.loads(told("advise", ASKED["layer"], *options))
    assert served["device"] == device_id
    assert served["source"] == "predicted"
    trust = served["trust"]
    assert (trust["confidence"], trust["borrowed_from"]) == (None, H200)
    assert trust["abstains"] is (device_id != H100)
    assert "NVIDIA H200" in trust["reason"]


def test_what_ships_of_a_gpu_that_borrows_is_told_as_measured(server: Client) -> None:
    asked = {"layer": "13-1-3-384-256", "dtype": "float16", "layout": "nhwc", "device": "h100"}
    found = server.get("/v1/advice", params=asked).json()
    assert (found["device"], found["source"], found["ranking"][0]["source"]) == (H100, "measured", "measured")
    assert (found["trust"]["borrowed_from"], found["trust"]["confidence"]) == (None, 1.0)
    assert found["baselines"]["cudnn_best"]["source"] == "measured"
    assert server.get("/v1/advice", params=asked | {"device": H200}).json()["time_ms"] != found["time_ms"]


def test_on_an_h100_epilogues_count_by_what_they_add_there(server: Client) -> None:
    plain, ended = (
        server.get("/v1/advice", params={**ASKED, "device": "h100", "activation": activation}).json()
        for activation in ("none", "relu")
    )
    assert (ended["device"], ended["epilogue_is_counted"]) == (H100, True)
    assert ended["time_ms"] > plain["time_ms"]


def test_the_same_gpu_by_another_name_is_the_same_answer(server: Client) -> None:
    names = ("h100", "H100 SXM", H100, "NVIDIA H100 80GB HBM3")
    assert len({server.get("/v1/advice", params={**ASKED, "device": name}).text for name in names}) == 1


def test_what_cannot_run_there_is_out_by_its_rule(server: Client) -> None:
    found = server.get("/v1/advice", params={**ASKED, "device": "a100"}).json()
    reasons = {exclusion["variant"]: exclusion["reason"] for exclusion in found["excluded"]}
    assert "only 9.0 has wgmma" in reasons["cuda.implicit_gemm_nhwc"]
    on_t4 = server.get("/v1/advice", params={**ASKED, "device": "t4"}).json()
    assert all(choice["variant"].startswith("cudnn.") for choice in on_t4["ranking"]), "ours begin with 8.0"
    listed = server.get("/v1/variants", params={**ASKED, "device": "a100"}).json()
    assert listed["device"] == A100
    applied = {variant["id"]: variant["applies"] for variant in listed["variants"]}
    assert all(applied[choice["variant"]] for choice in found["ranking"])
    assert not applied["cuda.implicit_gemm_nhwc"]


def test_short_answers_and_lists_say_whose_model_it_is(server: Client) -> None:
    alone = server.get("/v1/advice", params={**ASKED, "device": "a100", "ranking": "false"}).json()
    beside = server.get(
        "/v1/advice", params={**ASKED, "device": "a100", "ranking": "false", "baselines": "true"}
    ).json()
    layers = [ASKED["layer"], "28-8-1-64-64"]
    asked = {"layers": layers, "dtype": "float16", "layout": "nhwc", "device": "a100"}
    many = server.post("/v1/advice", json=asked).json()
    assert {each["borrowed_from"] for each in (alone, beside, many)} == {H200}
    assert many["device"] == alone["device"] == A100
    whole = server.get("/v1/advice", params={**ASKED, "device": "a100"}).json()
    assert alone["time_ms"] == many["advice"][0]["time_ms"] == whole["time_ms"]
    options = ["--dtype", "float16", "--layout", "nhwc", "--device", "a100"]
    assert json.loads(told("advise", *layers, *options, "--json"))["borrowed_from"] == H200
    rows = list(csv.DictReader(io.StringIO(told("advise", *layers, *options, "--csv"))))
    assert [(row["borrowed_from"], row["confidence"]) for row in rows] == [(H200, "")] * 2
    assert "predicted times are those of NVIDIA H200" in " ".join(told("advise", *layers, *options).split())
    own = server.get("/v1/advice", params={**ASKED, "device": H200, "ranking": "false"}).json()
    assert "borrowed_from" not in own


def test_explanations_maps_and_plans_say_it(server: Client) -> None:
    for path in ("/v1/explanations", "/v1/landscapes"):
        found = server.get(path, params={**ASKED, "device": "a100"}).json()
        assert (found["device"], found["borrowed_from"]) == (A100, H200)
    plans = server.get("/v1/plans", params={"name": "alexnet", "device": "a100", "dtype": "float16"}).json()["plans"]
    assert plans[0]["device"] == A100
    assert "predicted times are those of NVIDIA H200" in plans[0]["remarks"][-1]


@pytest.mark.parametrize("path", ["/", "/networks/alexnet", "/map", "/compare", "/plan"])
def test_pages_offer_the_gpu_and_say_whose_times_they_are(server: Client, path: str) -> None:
    query = {"layer": ASKED["layer"], "name": "alexnet", "device": "a100"}
    page = server.get(path, params=query)
    assert page.status_code == 200, page.text
    assert f'<option value="{A100}"' in page.text
    said = "predicted of nvidia-h200, scaled" if path == "/compare" else "predicted times are those of NVIDIA H200"
    assert said in " ".join(page.text.split())


@pytest.mark.parametrize("name", ["h999", "rtx 4091", "cuda:7", "nvidia"])
def test_an_unknown_gpu_is_refused_with_what_is_allowed(server: Client, name: str) -> None:
    answer = server.get("/v1/advice", params={**ASKED, "device": name})
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/unknown-device")
    assert {H200, "a100"} <= set(answer.json()["known"])
    done = CliRunner().invoke(cli, ["advise", ASKED["layer"], "--device", name])
    assert isinstance(done.exception, UnknownDevice)
    with pytest.raises(UnknownDevice):
        conv_advisor.advise(ASKED["layer"], device=name)


@pytest.mark.parametrize("name", ["", "a" * 101, "a100;drop", "a\n100", "../etc"])
def test_what_is_no_name_is_malformed(server: Client, name: str) -> None:
    assert server.get("/v1/advice", params={**ASKED, "device": name}).status_code in (404, 422)


def test_nobody_measures_on_a_gpu_that_no_server_has(server: Client) -> None:
    answer = server.post("/v1/jobs", json={"kind": "sweep", "networks": ["alexnet"], "device": "a100"})
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/unknown-device")
    answer = server.post("/v1/models", json={"device": "a100"})
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/unknown-device")


def test_the_command_line_measures_the_first_three_where_the_tree_is_not_sure(home: Path) -> None:
    problem = ConvProblem.parse(ASKED["layer"], dtype="float16", layout="nhwc")
    told_of = conv_advisor.advise(problem, device="a100").ranking
    settings = Settings(home=home)
    sure_of = replace(problem, dtype=DType.FLOAT32)
    for measure in (None, "if unsure"):
        assert _advised(problem, gpus()[A100].device, settings, None, measure) == [each.variant for each in told_of[:3]]
        assert len(_advised(sure_of, gpus()[H200].device, settings, None, measure)) == 1, "the tree is sure there"
    assert len(_advised(problem, gpus()[A100].device, settings, 1, None)) == 1, "as was asked"


def test_devices_are_listed_apart(server: Client) -> None:
    answer = server.get("/v1/devices")
    TypeAdapter(DevicesAnswer).validate_json(answer.content, strict=True, extra="forbid")
    met = {device["id"] for device in answer.json()["devices"]}
    published = {each["id"]: each for each in answer.json()["published"]}
    assert H200 in met
    assert not met & set(published)
    assert published[A100]["bandwidth_gb_s"] == 2039
    assert "datasheet" in published[A100]["source"]
    assert json.loads(told("devices", "--json"))["published"] == answer.json()["published"]
    assert "borrows one" in told("devices")


def test_cuda_0_is_the_first_gpu_of_this_host(server: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "visible_gpus", lambda: ("NVIDIA A100-SXM4-80GB", "NVIDIA H200"))
    found = [conv_advisor.advise(LAYER, device=name).device_id for name in ("cuda", "cuda:0", "CUDA:1")]
    assert found == [A100, A100, H200]
    with pytest.raises(UnknownDevice, match=r"^unknown device 'cuda:2'; CUDA finds 2 GPUs here; known: ") as caught:
        conv_advisor.advise(LAYER, device="cuda:2")
    assert caught.value.name == "cuda:2"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - made here


def test_a_device_of_pytorch_is_read_as_it_is_written_and_anything_else_is_refused(
    server: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "visible_gpus", lambda: ("NVIDIA A100-SXM4-80GB",))
    of_pytorch = type("device", (), {"__module__": "torch", "__str__": lambda _: "cuda:0"})()
    assert conv_advisor.advise(LAYER, device=of_pytorch).device_id == A100
    for wrong in (0, 1, ["h200"], b"h200"):
        with pytest.raises(InvalidInput, match=r"^device is .*; allowed: a name such as h100 or cuda:0, or a torch"):
            conv_advisor.advise(LAYER, device=wrong)  # type: ignore[arg-type] # wrong on purpose


def test_cuda_0_is_the_workers_gpu_where_the_driver_names_none(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        assert eventually(lambda: client.get("/readyz").status_code == 200)
        assert client.get("/v1/advice", params={"layer": LAYER, "device": "cuda:0"}).json()["device"] == GPU.id


def test_a_worker_on_a_gpu_without_a_tree_is_ready_with_a_lent_one(tmp_path: Path) -> None:
    with serving(tmp_path, has_tree=False) as client:
        service = client.app.state.service
        service.worker.device = gpus()[A100].device
        assert "model" not in service.shortcomings()
        found = client.get("/v1/advice", params={"layer": LAYER}).json()
        assert (found["device"], found["trust"]["borrowed_from"]) == (A100, H200)


def test_a_gpu_that_says_more_of_itself_than_is_published_is_believed() -> None:
    published, own = gpus()["nvidia-b200"].device, [None]
    here = devices.KnownDevices(Registry(Path("nowhere")), Records(), lambda: own[0])
    assert here.advisor(published.id).device.l2_bytes == 0
    own[0] = replace(published, l2_bytes=2**27)
    assert eventually(lambda: here.advisor(published.id).device.l2_bytes == 2**27)


def test_a_device_of_which_nothing_is_known_any_more_is_refused(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    model_id = registry.add(small_tree(TIMES_MS))
    registry.activate(GPU.id, model_id)
    here = devices.KnownDevices(registry, Records())
    assert here.find("Fake GPU").id == GPU.id
    shutil.rmtree(tmp_path / "models" / GPU.id)
    with pytest.raises(UnknownDevice, match="unknown device 'Fake GPU'"):
        here.find("Fake GPU")


def test_a_tree_of_its_own_ends_the_loan_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, has_tree=False) as client:
        asked = {"layer": LAYER, "device": A100}
        assert client.get("/v1/advice", params=asked).json()["trust"]["borrowed_from"] == H200
        tree, registry = small_tree(TIMES_MS, gpus()[A100].device), client.app.state.service.registry
        registry.activate(A100, registry.add(tree))
        found = client.get("/v1/advice", params=asked).json()
        assert (found["model"], found["trust"]["borrowed_from"]) == (tree.id, None)
