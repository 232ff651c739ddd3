"""A name that an object in JSON has twice: which value counts nobody can say, so none does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from conv_advisor.app.advice import asked
from conv_advisor.app.advice.asked import parse_list
from conv_advisor.app.cli import cli
from conv_advisor.app.wire.distinct import check_distinct
from conv_advisor.data.errors import InvalidInput
from tests.app.serving import LAYER, Client, is_problem, serving

JSON = {"content-type": "application/json"}
ADVICE = "/v1/advice"
TWICE = {
    "in a list of layers": (ADVICE, f'{{"layers": ["{LAYER}"], "dtype": "float16", "dtype": "tf32"}}', "dtype"),
    "layers": (ADVICE, f'{{"layers": ["{LAYER}"], "layers": ["7-1-1-8-8"]}}', "layers"),
    "in a layer of a list": (
        "/v1/advice",
        f'{{"layers": [{{"layer": "{LAYER}", "stride": 1, "stride": 2}}]}}',
        "stride",
    ),
    "beside a device": (ADVICE, f'{{"layers": ["{LAYER}"], "device": "cuda:0", "device": "fake-gpu"}}', "device"),
    "escaped": (ADVICE, f'{{"layers": ["{LAYER}"], "device": "fake-gpu", "d\\u0065vice": "h200"}}', "device"),
    "the same value": (ADVICE, f'{{"layers": ["{LAYER}"], "dtype": "tf32", "dtype": "tf32"}}', "dtype"),
    "in a convolution": ("/v1/convolutions", f'{{"layer": "{LAYER}", "top": 1, "top": 3}}', "top"),
    "in a job": ("/v1/jobs", '{"kind": "retrain", "force": false, "force": true}', "force"),
    "in a retraining": ("/v1/models", '{"device": "fake-gpu", "device": "nvidia-h200"}', "device"),
    "in an inference": ("/v2/models/conv/infer", '{"inputs": [], "parameters": {"pad": 1, "pad": 2}}', "pad"),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(tmp_path_factory.mktemp("home")) as client:
        yield client


@pytest.mark.parametrize("name", TWICE)
def test_a_name_that_is_given_twice_is_refused_by_name(client: Client, name: str) -> None:
    path, body, field = TWICE[name]
    problem = is_problem(client.post(path, content=body, headers=JSON), 400, "invalid-input")
    assert problem["field"] == field
    assert problem["allowed"] == "one value in an object"


def test_so_is_one_that_chooses_a_model(client: Client) -> None:
    body = '{"device": "fake-gpu", "model": "a", "model": "b"}'
    problem = is_problem(client.request("PUT", "/v1/models/active", content=body, headers=JSON), 400, "invalid-input")
    assert (problem["field"], problem["value"]) == ("model", "['a', 'b']")


def test_so_is_one_in_a_file_of_layers() -> None:
    lines = f'{{"layer": "{LAYER}"}}\n{{"layer": "{LAYER}", "dtype": "tf32", "dtype": "float16"}}\n'
    done = CliRunner().invoke(cli, ["advise", "--from", "-", "--device", "h200"], input=lines)
    assert isinstance(done.exception, InvalidInput)
    assert str(done.exception).startswith("line 2: dtype is ")


@pytest.mark.parametrize(
    "body",
    [
        {"layers": [LAYER] * 3},
        {"layers": [LAYER, {"layer": LAYER, "stride": 2}, {"n": 1, "c": 3}], "dtype": "tf32", "ranking": False},
        {"layers": [{}], "device": "cuda:0"},
    ],
)
def test_a_list_that_is_written_as_usual_is_read_once(monkeypatch: pytest.MonkeyPatch, body: dict[str, Any]) -> None:
    monkeypatch.setattr(asked, "check_distinct", lambda _text: pytest.fail("it is read twice"))
    parse_list(json.dumps(body).encode())


def test_what_cannot_be_read_a_second_time_is_left_to_who_read_it() -> None:
    check_distinct(b'{"a": ' + b"9" * 5000 + b"}")
    check_distinct(b"[" * 100_000)
