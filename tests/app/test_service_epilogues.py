"""Layers with an epilogue and with uneven padding, through the real application."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

import conv_advisor
from conv_advisor.app.advice import library
from conv_advisor.app.main import create_app
from conv_advisor.app.settings import Settings
from conv_advisor.app.wire.npy import read_npy
from conv_advisor.data.epilogue import Epilogue
from conv_advisor.data.measurement import Measurement, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels import reference
from conv_advisor.kernels.cudnn.variants import VARIANTS
from conv_advisor.kernels.variant import Backend
from tests.app.ending_costs import give
from tests.app.serving import FAST, GPU, Client, is_problem, recording, serving

UNSEEN = "28-8-3-64-32"
ENDING = "bias-residual-relu"
SMALL = ConvProblem.parse(f"6-2-3-4-3-{ENDING}")
LEGACY = {each.id for each in VARIANTS if each.backend is Backend.CUDNN_LEGACY}
NPY = "application/x-npy"
SAFETENSORS = "application/vnd.safetensors"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(tmp_path_factory.mktemp("home")) as client:
        yield client


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    client = Client(create_app(Settings(home=tmp_path_factory.mktemp("cpu"), device="cpu")))
    try:
        yield client
    finally:
        client.close()


def advised(client: Client, query: str) -> dict[str, Any]:
    response = client.get(f"/v1/advice?device=fake-gpu&{query}")
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_where_no_epilogue_was_measured_the_advice_is_that_without_it_and_says_so(client: Client) -> None:
    plain, ended = advised(client, f"layer={UNSEEN}"), advised(client, f"layer={UNSEEN}-{ENDING}")
    assert "epilogue_is_counted" not in plain
    assert ended["epilogue_is_counted"] is False
    assert ended["problem"].items() >= {"bias": True, "residual": True, "activation": "relu"}.items()
    assert ended["problem"]["layer"] == f"{UNSEEN}-{ENDING}"
    for name in ("variant", "time_ms", "ranking", "baselines", "excluded", "trust"):
        assert ended[name] == plain[name]
    named = advised(client, f"layer={UNSEEN}&bias=true&residual=true&activation=relu")
    assert named == ended


@pytest.mark.parametrize("more", ["", "&baselines=true"])
def test_the_best_alone_says_so_too(client: Client, more: str) -> None:
    alone = advised(client, f"layer={UNSEEN}&activation=silu&ranking=false{more}")
    assert (alone["layer"], alone["variant"], alone["epilogue_is_counted"]) == (f"{UNSEEN}-silu", FAST, False)
    assert "epilogue_is_counted" not in advised(client, f"layer={UNSEEN}&ranking=false{more}")


@pytest.mark.parametrize("more", [{}, {"ranking": True}, {"baselines": True}])
def test_a_list_says_it_of_each_layer(client: Client, more: dict[str, bool]) -> None:
    layers = [UNSEEN, f"{UNSEEN}-relu", {"layer": UNSEEN, "bias": True}, {"layer": UNSEEN, "activation": "tanh"}]
    answer = client.post("/v1/advice", json={"layers": layers, "device": "fake-gpu"} | more).json()["advice"]
    assert [each.get("epilogue_is_counted") for each in answer] == [None, False, False, None]
    assert [each.get("layer") for each in answer] == [UNSEEN, f"{UNSEEN}-relu", f"{UNSEEN}-bias", None]
    assert len({each["time_ms"] for each in answer[:3]}) == 1
    assert answer[3]["error"]["field"] == "activation"


@pytest.mark.parametrize("path", ["pareto", "neighbours", "explanations", "landscapes", "variants"])
def test_what_goes_with_advice_takes_epilogues(client: Client, path: str) -> None:
    response = client.get(f"/v1/{path}?layer={UNSEEN}-relu&device=fake-gpu")
    assert response.status_code == 200, response.text


def test_the_page_says_that_the_epilogue_is_not_counted(client: Client) -> None:
    page = client.get(f"/?layer={UNSEEN}-bias-relu&device=fake-gpu")
    assert page.status_code == 200
    assert "The epilogue, bias-relu, is not counted: every time is that of the convolution alone." in page.text
    assert "is not counted" not in client.get(f"/?layer={UNSEEN}&device=fake-gpu").text


def test_the_library_says_it_in_words_and_keeps_what_was_asked(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, tmp_path)
    monkeypatch.setenv("CONV_ADVISOR_HOME", str(tmp_path))
    library._local.cache_clear()
    ending = Epilogue.parse(ENDING)
    advice = conv_advisor.advise("14-1-3-256-128", epilogue=ENDING, dtype="half", device="nvidia-h200")
    assert advice == conv_advisor.advise("14-1-3-256-128", epilogue=ending, dtype="float16", device="nvidia-h200")
    plain = conv_advisor.advise("14-1-3-256-128", dtype="float16", device="nvidia-h200")
    assert (advice.ranking, advice.problem) == (plain.ranking, plain.problem)
    assert (advice.uncounted, advice.asked.epilogue, plain.uncounted) == (ending, ending, Epilogue())
    assert "is not counted" in repr(advice)
    assert advice.to_dict()["epilogue_is_counted"] is False
    library._local.cache_clear()


def test_advice_on_uneven_padding_leaves_out_who_cannot_by_name(client: Client) -> None:
    answer = advised(client, f"layer={UNSEEN}&pads=0,0,1,1")
    assert answer["variant"] not in LEGACY
    refused = {
        exclusion["variant"]
        for exclusion in answer["excluded"]
        if "the legacy API has one number" in exclusion["reason"]
    }
    assert FAST in refused
    assert refused <= LEGACY


def test_a_variant_says_how_it_ends_the_layer_that_is_asked_about(client: Client) -> None:
    for epilogue, wanted in {"bias-relu": "library", "relu": "appended"}.items():
        answer = client.get(f"/v1/variants?layer={UNSEEN}-{epilogue}&device=fake-gpu").json()
        assert {variant["ending"] for variant in answer["variants"] if variant["id"] in LEGACY} == {wanted}


def inputs_of(problem: ConvProblem) -> dict[str, np.ndarray]:
    """Random tensors, by name."""
    named = dict(zip(("x", "weight"), reference.random_operands(problem, seed=1), strict=True))
    ends = dict(zip(("bias", "residual"), reference.random_ends(problem, seed=1), strict=True))
    return named | {name: tensor for name, tensor in ends.items() if tensor is not None}


def expected_of(problem: ConvProblem, inputs: dict[str, np.ndarray]) -> np.ndarray:
    return reference.convolve(problem, *(inputs.get(name) for name in ("x", "weight", "bias", "residual")))


@pytest.mark.parametrize("variant", ["cpu.direct", "cpu.gemm_parallel", "cpu.winograd", "advised"])
def test_tensors_are_added_in_every_form_that_carries_them(on_cpu: Client, variant: str) -> None:
    inputs = inputs_of(SMALL)
    expected = expected_of(SMALL, inputs)
    metadata = {"pad": "1", "activation": "relu", "variant": variant}
    found = on_cpu.post("/v1/convolutions", content=save(inputs, metadata), headers={"content-type": SAFETENSORS})
    assert found.status_code == 200, found.text
    np.testing.assert_allclose(load(found.content)["y"], expected, atol=1e-5)
    as_npy = b"".join(_npy(inputs[name]) for name in ("x", "weight", "bias", "residual"))
    query = f"pad=1&activation=relu&bias=true&residual=true&variant={variant}"
    found = on_cpu.post(f"/v1/convolutions?{query}", content=as_npy, headers={"content-type": NPY})
    assert found.status_code == 200, found.text
    np.testing.assert_allclose(read_npy(np.frombuffer(found.content, np.uint8), ("y",))["y"], expected, atol=1e-5)
    lists = {name: tensor.tolist() for name, tensor in inputs.items()}
    found = on_cpu.post("/v1/convolutions", json=lists | {"pad": 1, "activation": "relu", "variant": variant})
    assert found.status_code == 200, found.text
    np.testing.assert_allclose(found.json()["y"], expected, atol=1e-5)
    assert found.json()["problem"]["layer"] == SMALL.short
    tensors = [
        {"name": name, "datatype": "FP32", "shape": list(tensor.shape), "data": tensor.ravel().tolist()}
        for name, tensor in inputs.items()
    ]
    asked = {"inputs": tensors, "parameters": {"pad": 1, "activation": "relu", "variant": variant}}
    found = on_cpu.post("/v2/models/conv/infer", json=asked)
    assert found.status_code == 200, found.text
    np.testing.assert_allclose(np.reshape(found.json()["outputs"][0]["data"], expected.shape), expected, atol=1e-5)


def _npy(array: np.ndarray) -> bytes:
    import io

    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_uneven_padding_is_computed_on_the_cpu(on_cpu: Client) -> None:
    problem = ConvProblem(1, 2, 7, 7, 3, 3, 3, stride_h=2, stride_w=2, pad_h_end=1, pad_w_end=1)
    inputs = inputs_of(problem)
    lists = {name: tensor.tolist() for name, tensor in inputs.items()}
    for padding in ({"pads": [0, 0, 1, 1]}, {"pad_h_end": 1, "pad_w_end": 1}):
        found = on_cpu.post("/v1/convolutions", json=lists | padding | {"strides": [2, 2], "variant": "cpu.gemm"})
        assert found.status_code == 200, found.text
        np.testing.assert_allclose(found.json()["y"], expected_of(problem, inputs), atol=1e-5)
        assert found.json()["problem"]["pad_h_end"] == 1


def test_a_measured_epilogue_counts_from_then_on_and_plain_advice_is_as_it_was(on_cpu: Client) -> None:
    measured = on_cpu.post("/v1/convolutions", json={"layer": f"9-1-3-4-3-{ENDING}", "variant": "all"})
    assert measured.status_code == 200, measured.text
    assert {attempt["outcome"] for attempt in measured.json()["attempts"]} <= {"measured", "pruned"}
    known = [device["id"] for device in on_cpu.get("/v1/devices").json()["devices"]]
    device = next(name for name in known if name.startswith("cpu"))
    answer = on_cpu.get(f"/v1/advice?layer=9-1-3-4-3-{ENDING}&device={device}").json()
    assert answer["epilogue_is_counted"] is True
    assert answer["source"] == "measured"
    plain = on_cpu.get(f"/v1/advice?layer=9-1-3-4-3&device={device}")
    is_problem(plain, 409, "no-advice")


BAD = {
    "a bias of the wrong length": ({"bias": [0.0] * 5}, "bias.shape", "(4,)"),
    "a bias of two levels": ({"bias": [[0.0] * 4]}, "bias.shape", "1 level of lists"),
    "a residual of another shape": ({"residual": [[[[0.0]]]]}, "residual.shape", "(2, 4, 6, 6)"),
    "a residual of no shape": ({"residual": True}, "residual", "numbers"),
    "an unknown activation": ({"activation": "tanh"}, "activation", "none, relu"),
}


@pytest.mark.parametrize(("change", "field", "allowed"), BAD.values(), ids=BAD)
def test_what_is_added_must_fit(on_cpu: Client, change: dict[str, Any], field: str, allowed: str) -> None:
    lists = {name: tensor.tolist() for name, tensor in inputs_of(SMALL).items()}
    response = on_cpu.post("/v1/convolutions", json=lists | {"pad": 1} | change)
    document = response.json()
    assert response.status_code == 400, response.text
    assert (document["field"], response.headers["content-type"]) == (field, "application/problem+json")
    assert allowed in document["allowed"]


def test_tensors_and_parameters_must_agree(on_cpu: Client) -> None:
    inputs = inputs_of(SMALL)
    for metadata, tensors, field in (
        ({"bias": "true"}, {"x", "weight"}, "bias"),
        ({"residual": "false"}, {"x", "weight", "residual"}, "residual"),
        ({"layer": f"6-2-3-4-3-{ENDING}"}, {"x", "weight", "bias"}, "residual"),
    ):
        body = save({name: inputs[name] for name in tensors}, {"pad": "1"} | metadata)
        response = on_cpu.post("/v1/convolutions", content=body, headers={"content-type": SAFETENSORS})
        assert is_problem(response, 400, "invalid-tensor")["field"] == field
    mixed = inputs | {"bias": inputs["bias"].astype(np.float16)}
    response = on_cpu.post("/v1/convolutions", content=save(mixed, {"pad": "1"}), headers={"content-type": SAFETENSORS})
    assert is_problem(response, 400, "invalid-tensor")["field"] == "bias.dtype"


@pytest.mark.parametrize("epilogue", [ENDING, "bias-gelu", "residual", "silu"])
def test_a_program_computes_the_epilogue(on_cpu: Client, epilogue: str) -> None:
    on_cpu.post("/v1/convolutions", json={"layer": f"8-1-3-4-3-{epilogue}", "variant": "cpu.gemm"})
    known = [device["id"] for device in on_cpu.get("/v1/devices").json()["devices"]]
    device = next(name for name in known if name.startswith("cpu"))
    asked = {"layer": f"8-1-3-4-3-{epilogue}", "device": device, "variant": "cpu.gemm"}
    answer = on_cpu.get("/v1/snippets", params=asked).json()
    ran: dict[str, Any] = {}
    exec(answer["snippet"], ran)  # noqa: S102 - the program is what is tested
    problem = ConvProblem.parse(f"8-1-3-4-3-{epilogue}")
    assert ran["problem"] == problem
    expected = expected_of(problem, {name: ran[name] for name in problem.shapes})
    np.testing.assert_allclose(ran["y"], expected, atol=1e-5)


def test_a_program_has_the_epilogue_or_says_that_its_library_has_no_form_for_it(client: Client) -> None:
    asked = {"device": "fake-gpu", "layer": f"{UNSEEN}-bias-relu"}
    for variant in ("cuda.gemm", "cudnn.implicit_precomp_gemm"):
        answer = client.get("/v1/snippets", params=asked | {"variant": variant, "language": "python"}).json()
        assert 'epilogue=Epilogue.parse("bias-relu")' in answer["snippet"]
        assert "leaves out" not in answer["snippet"]


@pytest.mark.parametrize(("activation", "said"), [("silu", "graph.sigmoid"), ("hardswish", "leaves out")])
def test_a_program_of_an_engine_has_nodes_of_its_own_not_the_plan_without_them(
    client: Client, activation: str, said: str
) -> None:
    problem = ConvProblem.parse("20-8-3-64-32")
    plan = {"engine": 0, "knobs": {"13": 1}}
    row = Measurement(problem, "cudnn.graph.eng0", GPU, Outcome.MEASURED, "", (0.001,) * 5, 0, 1e-7, plan)
    client.app.state.service.store.append([row, *recording(problem)])
    asked = {"device": "fake-gpu", "layer": f"{problem.short}-{activation}", "variant": row.variant}
    answer = client.get("/v1/snippets", params=asked).json()
    assert said in answer["snippet"]
    assert (answer["rule"] is None) == (activation == "hardswish")
    assert answer["plan"]["knobs"] == (plan["knobs"] if activation == "hardswish" else None)


@pytest.mark.parametrize("kind", ["Conv3d", "ConvTranspose2d"])
def test_other_convolutions_are_refused_by_name(client: Client, kind: str) -> None:
    response = client.get("/v1/advice", params={"layer": f"{kind}(4, 8, 3)", "input": "1x4x9x9"})
    document = is_problem(response, 400, "invalid-input")
    assert document["field"] == "layer"
    assert f"{kind} is a" in document["allowed"]


def test_the_pages_fields_say_what_follows(client: Client) -> None:
    sizes = dict.fromkeys(("h", "w", "c", "k"), "8") | {"n": "1", "r": "3", "s": "3", "pad_h": "1", "pad_w": "1"}
    asked = {"by": "fields", "device": "fake-gpu", **sizes, "bias": "true", "activation": "relu"}
    page = client.get("/", params=asked).text
    assert 'name="bias" value="true" checked' in page
    assert '<option value="relu" selected>' in page
    assert 'value="8-1-3-8-8-bias-relu"' in page
    plain = client.get("/", params={"layer": "8-1-3-8-8", "device": "fake-gpu"}).text
    assert 'name="bias" value="true" checked' not in plain
    assert '<option value="none" selected>' in plain


def test_variants_say_how_they_end(client: Client) -> None:
    variants = {variant["id"]: variant["ending"] for variant in client.get("/v1/variants").json()["variants"]}
    assert variants["cpu.direct"] == "appended"
    assert variants["cpu.gemm"] == variants["cpu.winograd"] == variants["cpu.fft"] == "fused"
