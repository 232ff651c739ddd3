"""What the pages have beside their answers: tables as files, a comparison, a search, drawings, gzip."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from html import unescape
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import literal_column
from starlette.datastructures import Headers

import conv_advisor
from conv_advisor.app.guard.policy import COOKIE
from conv_advisor.app.guard.tokens import entry_of, make_token
from conv_advisor.app.routes.tables import RUNS, TABLES
from conv_advisor.app.service import regret
from conv_advisor.app.service.regret import Regretted, live_regret
from conv_advisor.app.web import charts, learning, render, search, tables, text
from conv_advisor.app.web.compressed import takes_gzip
from conv_advisor.app.wire.caller import Scope
from conv_advisor.data import networks
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.ranking.words import chance
from tests.app.serving import FAST, GPU, LEAN, SLOW, TIMES_MS, Client, serving, small_tree
from tests.app.test_pages import HTMX, Found, shown
from tests.processes import eventually

LAYER = "8-2-3-6-4"
ADVICE = {"layer": LAYER, "device": GPU.id}
H200 = {"layer": "14-1-3-256-128", "device": "nvidia-h200"}
QUERIES: Mapping[str, Mapping[str, str]] = {
    "neighbours": ADVICE | {"layer": "8-3-3-6-4"},
    "tradeoffs": H200,
    "compared": H200 | {"other_layer": "28-1-3-64-64"},
    "network": {"name": "alexnet", "device": "nvidia-h200"},
    "map": H200,
    "plan": {"name": "alexnet", "batches": "1,8", "device": "nvidia-h200"},
    "regret": {"device": GPU.id},
    "layers": {"q": "squeezenet expand1x1"},
}
"""With what each table is asked for; by default, as `ADVICE`."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(tmp_path_factory.mktemp("home"), convolution_deadline_s=8.0) as client:
        assert eventually(lambda: client.get("/readyz").status_code == 200)
        for variant in (SLOW, LEAN, FAST):
            assert client.post("/v1/convolutions", json={"layer": LAYER, "variant": variant}).status_code == 200
        yield client


def rows_of(client: Client, name: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
    answer = client.get(f"/tables/{name}.json", params=dict(query))
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = answer.json()
    return rows


@pytest.mark.parametrize("name", [*TABLES, *RUNS])
def test_every_table_is_the_same_as_csv_and_as_json(client: Client, name: str) -> None:
    query = dict(QUERIES.get(name, ADVICE))
    if name in RUNS:
        asked = client.post("/measurements", data={"layer": LAYER, "which": "best"}, headers=HTMX)
        query = {"run": asked.text.split("/measurements/")[1].split('"')[0].split("/")[0]}
        assert eventually(lambda: "Done:" in client.get(f"/measurements/{query['run']}", headers=HTMX).text)
    if name == "jobs":
        asked = client.post("/v1/jobs", json={"kind": "measure", "layers": [LAYER], "variants": [FAST]})
        job = asked.json()["id"]
        assert eventually(lambda: client.get(f"/v1/jobs/{job}").json()["state"] == "succeeded")
    rows = rows_of(client, name, query)
    answer = client.get(f"/tables/{name}.csv", params=query)
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert re.fullmatch(rf'attachment; filename="{name}[\w.-]*\.csv"', answer.headers["content-disposition"])
    written = list(csv.DictReader(io.StringIO(answer.text)))
    assert rows
    assert len(written) == len(rows)
    for one, other in zip(written, rows, strict=True):
        assert list(one) == list(other)
        assert list(one.values()) == ["" if value is None else str(value) for value in other.values()]


def test_the_pages_link_to_tables_that_exist(client: Client) -> None:
    client.post("/measurements", data={"layer": LAYER, "which": "best"}, headers=HTMX)
    addresses = ["/", "/networks/resnet50", "/map", "/models", "/jobs", "/search?q=vgg"]
    addresses += [
        "/?layer=14-3-3-250-130&device=nvidia-h200&max_error=1e-3&workspace_mib=4",
        f"/?layer={LAYER}&device={GPU.id}",
    ]
    addresses += ["/compare?device=nvidia-h200", "/plan?name=alexnet&device=nvidia-h200"]
    seen = set()
    for address in addresses:
        links = [str(link["href"]) for link in shown(client.get(address)).all("a")]
        for link in {link for link in links if link.startswith("/tables/")}:
            assert client.get(link).status_code == 200, (address, link)
            seen.add(re.sub(r"/tables/(\w+).*", r"\1", link))
    assert {*TABLES, "measurements"} - seen == set()


def test_a_table_has_what_the_api_says(client: Client) -> None:
    advice = client.get("/v1/advice", params=H200).json()
    ranking = rows_of(client, "ranking", H200)
    for row, choice in zip(ranking, advice["ranking"], strict=True):
        assert {name: row[name] for name in choice if name in row} == {
            name: choice[name] for name in choice if name in row
        }
    assert rows_of(client, "excluded", H200) == advice["excluded"]
    pareto = client.get("/v1/pareto", params=H200).json()
    front = [row["variant"] for row in rows_of(client, "tradeoffs", H200) if row["is_on_front"]]
    assert front == pareto["front"]


def test_limits_count_in_a_table_too(client: Client) -> None:
    sizes = [row["workspace_bytes"] for row in rows_of(client, "ranking", H200 | {"workspace_mib": "1"})]
    assert max(filter(None, sizes), default=0) <= 2**20
    assert max(filter(None, (row["workspace_bytes"] for row in rows_of(client, "ranking", H200)))) > 2**20


def test_what_is_no_table_is_refused(client: Client) -> None:
    assert "ranking" in client.get("/tables/rankings.csv").text
    assert client.get("/tables/rankings.csv").status_code == 404
    assert client.get("/tables/ranking.xlsx", params=ADVICE).status_code == 400
    assert client.get("/tables/ranking.csv", params={"layer": "x"}).status_code == 400
    assert client.get("/tables/network.csv", params={"name": "lenet"}).status_code == 404
    assert client.get("/tables/measurement.csv", params={"run": "none"}).status_code == 404


def test_no_cell_is_a_formula_and_no_number_is_none_of_json() -> None:
    table = tables.Table(("a", "b"), [("=1+1", float("inf")), ('@x, "y"', -1.5)])
    assert list(csv.reader(io.StringIO(table.as_csv()))) == [["a", "b"], ["'=1+1", ""], ['\'@x, "y"', "-1.5"]]
    assert json.loads(table.as_json()) == [{"a": "=1+1", "b": None}, {"a": '@x, "y"', "b": -1.5}]


def test_two_layers_stand_side_by_side(client: Client) -> None:
    asked = H200 | {"other_layer": "28-8-3-64-64"}
    response = client.get("/compare", params=asked)
    page = shown(response)
    advices = [
        client.get("/v1/advice", params=H200 | {"layer": layer}).json() for layer in ("14-1-3-256-128", "28-8-3-64-64")
    ]
    assert "100 %" not in page.text, "nothing is certain"
    rows = {row["variant"]: row for row in rows_of(client, "compared", asked)}
    assert set(rows) == {choice["variant"] for advice in advices for choice in advice["ranking"]}
    for side, advice in zip(("", "other_"), advices, strict=True):
        assert advice["variant"] in page.text
        assert chance(advice["trust"]["confidence"]) in page.text
        for choice in advice["ranking"]:
            assert rows[choice["variant"]][f"{side}time_ms"] == choice["time_ms"]
    for row in rows.values():
        if row["ratio"] is not None:
            assert row["ratio"] == pytest.approx(row["other_time_ms"] / row["time_ms"])
    again = shown(client.get(response.headers["hx-push-url"]))
    assert again.all("input", name="other_layer", value="28-8-3-64-64"), "its own address leads back to the same two"


def test_where_the_tree_parts_two_layers(client: Client) -> None:
    asked = {"layer": "8-64-3-6-4", "other_layer": "8-65-3-6-4", "device": GPU.id}
    assert (
        "The tree separates them at decision 1: batch 64 ≤ 64 for the first, batch 65 > 64 for the second."
        in shown(client.get("/compare", params=asked)).text
    )
    same = shown(client.get("/compare", params=asked | {"other_layer": "8-3-3-6-4"}))
    assert "The tree takes both to the same leaf." in same.text
    two_trees = shown(client.get("/compare", params=asked | {"other_device": "nvidia-h200"}))
    assert "tree separates them" not in two_trees.text


def test_alone_a_layer_is_compared_with_itself_in_half_precision(client: Client) -> None:
    assert "float16 nchw" in shown(client.get("/compare", params=H200)).text
    swapped = shown(client.get("/compare", params=H200 | {"dtype": "float16"}))
    assert "float32 nchw" in swapped.text


def test_what_is_wrong_with_the_second_layer_is_said_of_its_field(client: Client) -> None:
    (alert,) = shown(client.get("/compare", params=H200 | {"other_layer": "x"}), 400).all("div", role="alert")
    assert alert["data-field"] == "other_layer"
    (alert,) = shown(client.get("/compare", params=H200 | {"layer": "x"}), 400).all("div", role="alert")
    assert alert["data-field"] == "layer"


def test_layers_and_networks_are_found_by_words(client: Client) -> None:
    page = shown(client.get("/search", params={"q": "ResNet50 conv4 3x3"}))
    assert "14-1-3-256-256" in page.text
    page = shown(client.get("/search", params={"q": "mobile v2"}))
    assert page.all("a", href="/networks/mobilenet_v2")
    assert not page.all("a", href="/networks/vgg19")
    stem = shown(client.get("/search", params={"q": "resnet50 224-1-7-64-3-stride2"}))
    assert stem.all("a", href="/?layer=224-1-7-64-3-stride2&network=googlenet")
    very = shown(client.get("/search", params={"q": "14-8-3-256-256"}))
    assert very.all("a", href="/?layer=14-8-3-256-256")
    assert very.all("a", href="/?layer=14-8-3-256-256&network=resnet50"), "in the batch that was asked for"
    assert (
        "No network and no layer has all of these words" in shown(client.get("/search", params={"q": "lenet-5"})).text
    )
    assert shown(client.get("/search")).all("input", name="q")


@pytest.mark.parametrize(
    ("word", "is_so"),
    [
        ("depthwise", lambda problem: problem.groups == problem.c > 1),
        ("pointwise", lambda problem: problem.r == problem.s == 1),
        ("strided", lambda problem: max(problem.stride_h, problem.stride_w) > 1),
        ("5x5", lambda problem: problem.r == problem.s == 5),
    ],
)
def test_a_kind_finds_all_layers_of_it_and_no_other(word: str, is_so: Any) -> None:
    known = {layer.problem for name in networks.names() if networks.is_network(name) for layer in networks.whole(name)}
    known |= {layer.problem for name in networks.GROUPS[networks.EXPERIMENTS] for layer in networks.layers(name)}
    view = search.search_view(word)
    said = [(each.layer.short, *(origin for _, origin in each.layer.places), each) for each in search._entries()]
    others = [each for short, *origins, each in said if short.startswith(word) or word in " ".join(origins)]
    named = sum(not is_so(ConvProblem.parse(each.layer.short)) for each in others)
    assert view.n_layers - named == sum(map(is_so, known)) > 0


def test_what_is_searched_for_is_bounded_and_no_markup(client: Client) -> None:
    evil = '"><script>alert(1)</script>'
    assert "<script>alert" not in client.get("/search", params={"q": evil}).text
    assert len(search.search_view("x" * 10_000).words) == 200
    assert len(search.search_view("1").layers) == search.MOST < search.search_view("1").n_layers


def elsewhere(response: Any) -> dict[str, str]:
    """What the page says of the same answer, by the way to it."""
    return {name: unescape(said) for name, said in re.findall(r'<code id="same-(\w+)">([^<]*)</code>', response.text)}


def asked_by(curl: str) -> str:
    tool, address = shlex.split(curl)
    assert tool == "curl"
    return address.removeprefix("http://localhost")


def test_the_same_answer_is_had_elsewhere(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = H200 | {"dtype": "float16", "layout": "nhwc", "workspace_mib": "4", "deterministic": "true"}
    response = client.get("/", params=asked)
    texts = elsewhere(response)
    address = asked_by(texts["curl"])
    advice = client.get(address).json()
    assert f"Fastest {advice['variant']}" in shown(response).text
    assert f"Fastest {advice['variant']}" in shown(client.get(texts["link"].removeprefix("http://localhost"))).text
    again = eval(texts["python"], {"conv_advisor": conv_advisor})  # noqa: S307 - the page's own words
    assert again.variant == advice["variant"]
    words = shlex.split(texts["command"])
    assert words[:3] == ["conv-advisor", "advise", "14-1-3-256-128"]
    options = dict(parse_qsl(urlsplit(address).query))
    for name in ("dtype", "layout", "device", "max_workspace_bytes"):
        assert words[words.index(f"--{name.replace('_', '-')}") + 1] == options[name]
    assert "--deterministic" in words


def test_advice_of_cudnn_alone_is_that_elsewhere_too(client: Client) -> None:
    nobody_measured = {"layer": "15-1-3-256-128"}  # so that the tree answers, which the server has without what ships
    response = client.get("/", params=H200 | nobody_measured | {"only": "cudnn"})
    texts = elsewhere(response)
    variant = client.get(asked_by(texts["curl"])).json()["variant"]
    assert variant.startswith("cudnn.")
    assert f"Fastest {variant}" in shown(response).text
    assert eval(texts["python"], {"conv_advisor": conv_advisor}).variant == variant  # noqa: S307 - the page's own words
    assert texts["command"].endswith("--only cudnn")


def test_the_same_map_is_had_elsewhere(client: Client) -> None:
    asked = H200 | {"workspace_mib": "4", "only": "cudnn", "x": "filters", "y": "depth"}
    response = client.get("/map", params=asked)
    texts = elsewhere(response)
    assert {*texts} == {"link", "curl"}
    landscape = client.get(asked_by(texts["curl"])).json()
    assert (landscape["x"]["axis"], landscape["y"]["axis"]) == ("filters", "depth")
    assert all(variant.startswith("cudnn.") for variant in landscape["variants"])
    again = client.get(texts["link"].removeprefix("http://localhost"))
    assert elsewhere(again) == texts


def test_the_same_plan_is_had_elsewhere(client: Client) -> None:
    asked = {"name": "alexnet", "batches": "1, 8", "dtype": "float16", "only": "cudnn", "device": "nvidia-h200"}
    response = client.get("/plan", params=asked)
    texts = elsewhere(response)
    plans = client.get(asked_by(texts["curl"])).json()["plans"]
    assert [plan["batch"] for plan in plans] == [1, 8]
    for plan in plans:
        assert render._environment().filters["time"](plan["time_ms"]) in shown(response).text
    assert elsewhere(client.get(texts["link"].removeprefix("http://localhost"))) == texts
    words = shlex.split(texts["command"])
    assert words[:5] == ["conv-advisor", "plan", "alexnet", "--batches", "1,8"]
    assert words[words.index("--only") + 1] == "cudnn"
    assert ".plan('alexnet', batches=[1, 8], dtype='float16'" in texts["python"]


def test_a_network_leads_to_its_plan(client: Client) -> None:
    (link,) = [
        str(link["href"])
        for link in shown(client.get("/networks/alexnet?batch=8")).all("a")
        if str(link["href"]).startswith("/plan?")
    ]
    assert "alexnet, batch 8" in shown(client.get(link)).text
    assert "Plan it" not in client.get("/networks/filter-sweep").text, "which is no network"


def test_a_page_that_is_none_says_so_to_people_and_to_programs(client: Client) -> None:
    page = shown(client.get("/nowhere", headers={"accept": "text/html,*/*"}), 404)
    assert "Nothing is here" in page.text
    assert "/nowhere is no page of this service" in page.text
    assert page.all("form", action="/search")
    for headers in ({}, {"accept": "application/json"}):
        answer = client.get("/nowhere", headers=headers)
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"].startswith("nothing is at /nowhere; /openapi.json has what there is")
    posted = client.post("/nowhere", headers={"accept": "text/html"})
    assert posted.headers["content-type"] == "application/problem+json"
    evil = client.get("/<script>alert(1)</script>", headers={"accept": "text/html"})
    assert "<script>alert" not in evil.text
    unknown = client.get("/v1/jobs/none", headers={"accept": "text/html"})
    assert unknown.headers["content-type"] == "application/problem+json", "the API answers as it is documented"


@pytest.mark.parametrize("path", ["/", "/networks", "/guide", "/static/page.css", "/static/vendor/htmx.min.js"])
def test_pages_and_their_files_come_compressed_to_who_takes_it(client: Client, path: str) -> None:
    plain = client.get(path, headers={"accept-encoding": "identity"})
    packed = client.get(path, headers={"accept-encoding": "gzip, br"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    for answer in (plain, packed):
        assert "accept-encoding" in answer.headers["vary"].lower()
    if path != "/":  # which says how long ago something was
        assert packed.content == plain.content, "what httpx unpacks is the same"
    assert int(packed.headers["content-length"]) < int(plain.headers["content-length"]) / 2


def test_long_lists_and_tables_come_compressed_to_who_takes_it(client: Client) -> None:
    layers = {"layers": [f"{size}-1-3-16-8" for size in range(3, 103)], "device": GPU.id}
    table = f"/tables/ranking.json?layer={LAYER}&device={GPU.id}"
    variants = "/tables/excluded.csv?layer=14-1-3-256-128&device=" + GPU.id
    for method, path, body in (("POST", "/v1/advice", layers), ("GET", variants, None)):
        plain = client.request(method, path, json=body, headers={"accept-encoding": "identity"})
        packed = client.request(method, path, json=body, headers={"accept-encoding": "gzip"})
        assert plain.status_code == packed.status_code == 200
        assert packed.content == plain.content, "what httpx unpacks is the same"
        assert "content-encoding" not in plain.headers
        assert packed.headers["content-encoding"] == "gzip"
        assert plain.headers["vary"] == packed.headers["vary"] == "Accept-Encoding"
        assert int(packed.headers["content-length"]) < int(plain.headers["content-length"]) / 2
    short = client.post("/v1/advice", json={"layers": [LAYER], "device": GPU.id}, headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in short.headers
    assert client.get(table, headers={"accept-encoding": "gzip"}).json()[0]["variant"] == FAST


def test_a_compressed_file_is_kept_asked_about_and_read_in_part(client: Client) -> None:
    path, packs = "/static/page.css", {"accept-encoding": "gzip"}
    packed = client.get(path, headers=packs)
    plain = client.get(path, headers={"accept-encoding": "identity"})
    assert packed.headers["etag"] == f"W/{plain.headers['etag']}"
    for headers in (packs, {"accept-encoding": "identity"}):
        again = client.get(path, headers=headers | {"if-none-match": packed.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    head = client.request("HEAD", path, headers=packs)
    assert head.content == b""
    assert head.headers["content-length"] == packed.headers["content-length"]
    part = client.get(path, headers=packs | {"range": "bytes=0-99"})
    assert (part.status_code, len(part.content)) == (206, 100)
    assert "content-encoding" not in part.headers
    body = gzip.compress((render.STATIC / "page.css").read_bytes(), 9, mtime=0)
    assert len(body) == int(packed.headers["content-length"])


@pytest.mark.parametrize(
    ("said", "is_taken"),
    [
        ("gzip", True),
        ("br, GZip;q=0.5", True),
        ("*", True),
        ("", False),
        ("br", False),
        ("gzip;q=0", False),
        ("*, gzip;q=0", False),
        ("gzip;q=x", False),
        ("identity", False),
    ],
)
def test_who_takes_gzip(said: str, is_taken: bool) -> None:
    assert takes_gzip(Headers({"accept-encoding": said})) is is_taken


def test_no_compressed_page_holds_a_token_or_what_is_kept_of_one(tmp_path: Path) -> None:
    token = make_token()
    entry = entry_of("me", list(Scope), token)
    with serving(tmp_path, tokens=entry) as own:
        headers = {"cookie": f"{COOKIE}={token}", "accept-encoding": "gzip", "accept": "text/html"}
        for path in ("/", "/networks", "/compare", "/map", "/models", "/jobs", "/search?q=x", "/guide", "/none"):
            answer = own.get(path, headers=headers)
            assert answer.headers["content-encoding"] == "gzip", path
            assert token not in answer.text
            assert not [part for part in re.findall(r"[0-9a-f]{32,}", entry) if part in answer.text]


spots = st.tuples(st.floats(4, 96), st.floats(4, 96))


@given(st.lists(spots, max_size=14), st.lists(spots, max_size=20))
def test_no_label_lies_on_another_at_any_width(on: list[tuple[float, float]], off: list[tuple[float, float]]) -> None:
    labels = charts.place_labels([(x, y, str(place)) for place, (x, y) in enumerate(on, 1)], off)
    assert len({label.text for label in labels}) == len(labels) <= len(on)
    for width_px in (180, 190, 250, 333, 480, 620, 761, 1000, 1200):
        boxes = [box_of(label, width_px) for label in labels]
        assert not [pair for pair in itertools.combinations(boxes, 2) if overlap(*pair)], width_px


def box_of(label: charts.Label, width_px: float) -> tuple[float, float, float, float]:
    """Left, right, top and bottom of a label in a drawing of that width and 14rem high, in pixels."""
    x, y, half = label.x * width_px / 100 + label.dx, label.y * 224 / 100 + label.dy, len(label.text) * 7.5 / 2
    return x - half, x + half, y - 6.5, y + 6.5


def overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[1] - 1e-6 and b[0] < a[1] - 1e-6 and a[2] < b[3] - 1e-6 and b[2] < a[3] - 1e-6


def test_a_few_labels_all_find_a_place() -> None:
    dots = [(10.0, 10.0, "1"), (50.0, 50.0, "2"), (90.0, 90.0, "3")]
    assert [label.text for label in charts.place_labels(dots)] == ["1", "2", "3"]
    assert [label.text for label in charts.place_labels([(50.0, 50.0, "1"), (50.5, 50.5, "2")])] == ["1, 2"]


@given(st.floats(1e-4, 1e3), st.floats(1.0, 1e5))
def test_ticks_are_round_within_the_axis_and_few(low: float, factor: float) -> None:
    axis = charts.Axis(low, low * factor)
    for ticks in (axis.ticks(6), axis.binary_ticks(5)):
        assert 1 <= len(ticks) <= 6
        assert all(0 <= axis.at(tick) <= 100 for tick in ticks)
        assert ticks == sorted(ticks)
    assert axis.at(axis.low) <= axis.at(axis.high)


def test_the_drawing_of_the_trade_offs_has_axes_with_units_and_a_tip_for_every_dot(client: Client) -> None:
    page = shown(client.get("/", params=H200))
    pareto = client.get("/v1/pareto", params=H200).json()
    known = [point for point in pareto["points"] if point["workspace_bytes"] is not None]
    circles = page.all("circle", **{"class": "on"}) + page.all("circle", **{"class": "off"})
    assert len(circles) == len(known) + 2, "the key has one of each"
    assert len([tag for tag, attributes in page.tags if tag == "foreignobject"]) == len(known)
    assert re.search(r"workspace none( \d+ (B|KiB|MiB))+", page.text)
    assert re.search(r"( [\d.]+ (µs|ms|s)){2,} time", page.text)


def test_the_documentation_of_the_api_leads_back_to_the_page(client: Client) -> None:
    assert shown(client.get("/docs")).all("a", href="/")


def test_three_decisions_come_first_and_the_rest_on_request(client: Client) -> None:
    html = client.get("/", params=H200).text
    first, rest = html.split('<ol class="decisive">')[1].split("<details", 1)
    decisions = client.get("/v1/explanations", params=H200).json()["decisions"]
    assert first.count("<li>") == 3
    assert rest.split("</details>")[0].count("<li>") == len(decisions) > 3
    assert f"All {len(decisions)} decisions" in Found(rest).text


def why_of(client: Client, given: dict[str, str]) -> tuple[str, str, str]:
    """The advised variant, the one that the page's reasons single out, and what the page says of them."""
    advised = client.get("/v1/advice", params=H200 | given).json()["variant"]
    html = client.get("/", params=H200 | given).text
    why = Found(html.split('id="why"')[1].split("<ol")[0].replace("<wbr>", "")).text
    return advised, why.split("single out ")[1].split(" among")[0], why


def test_why_explains_the_advised_variant_where_it_is_the_trees_first(client: Client) -> None:
    advised, explained, why = why_of(client, {})
    assert explained == advised
    assert "Ties, limits" not in why


def test_why_says_where_limits_put_another_variant_first(client: Client) -> None:
    advised, explained, why = why_of(client, {"only": "cudnn"})
    assert explained != advised
    assert f"Ties, limits and what was measured then put {advised} first." in why


def test_why_says_where_ties_put_another_variant_first(client: Client) -> None:
    sizes = ((56, 256, 64), (7, 2048, 512), (28, 512, 128), (14, 256, 1024), (14, 512, 512))
    layers = [f"{size}-{n}-{filter_}-{k}-{c}" for size, k, c in sizes for n in (1, 8, 32) for filter_ in (1, 3)]
    for layer, dtype, layout in product(layers, ("float16", "bfloat16", "tf32"), ("nchw", "nhwc")):
        advised, explained, why = why_of(client, {"layer": layer, "dtype": dtype, "layout": layout})
        assert (f"Ties, limits and what was measured then put {advised} first." in why) == (explained != advised)
        if explained != advised:
            return
    pytest.fail("none of these layers is a tie, or its measurements agree with the tree")


def test_a_whole_network_has_counts_and_totals(client: Client) -> None:
    rows = rows_of(client, "network", {"name": "resnet50", "device": "nvidia-h200"})
    assert sum(row["count"] for row in rows) == 53
    assert all(row["total_ms"] == pytest.approx(row["count"] * row["time_ms"]) for row in rows)
    page = shown(client.get("/networks/resnet50", params={"device": "nvidia-h200"}))
    assert "53 convolutions of one pass, 20 distinct layers" in page.text
    assert render._environment().filters["time"](sum(row["total_ms"] for row in rows)) in page.text
    assert re.search(r"56-1-1-128-256 ?- ?stride2", page.text), "as briefly as it can be written"
    assert "7.71 GFLOP" in page.text
    experiment = shown(client.get("/networks/filter-sweep", params={"device": "nvidia-h200"}))
    assert "distinct layers, each once" in experiment.text


def test_the_page_says_what_advice_is_up_against(client: Client) -> None:
    answer = client.get("/v1/advice", params=H200).json()["baselines"]
    rows = rows_of(client, "baselines", H200)
    assert {row["name"] for row in rows} == set(answer)
    for row in rows:
        assert answer[row.pop("name")] == row
    html = client.get("/", params=H200).text
    said = Found(html.split('id="against"')[1].split("</section>")[0]).text
    for baseline in answer.values():
        known = baseline["time_ms"] is not None
        assert (f"{text.slowdown(baseline['speedup'])} as long" if known else baseline["basis"]) in said


def test_a_network_is_held_against_what_others_take_on_the_same_layers(client: Client) -> None:
    asked = {"name": "mobilenet_v2", "device": "nvidia-h200"}
    rows = rows_of(client, "network", asked)
    page = shown(client.get("/networks/mobilenet_v2", params={"device": "nvidia-h200"}))
    for title, name in (("PyTorch's default", "pytorch_default"), ("cuDNN's best", "cudnn_best")):
        known = [row for row in rows if row[f"{name}_ms"] is not None]
        its_ms = sum(row["count"] * row[f"{name}_ms"] for row in known)
        own_ms = sum(row["total_ms"] for row in known)
        part = page.text[page.text.index(title) :][:200]
        assert text.time(its_ms) in part
        assert f"{text.slowdown(its_ms / own_ms)} as long" in part
        if len(known) < len(rows):
            assert f"on {len(known)} of {len(rows)} layers, where the advised take {text.time(own_ms)}" in part
    assert 0 < sum(row["pytorch_default_ms"] is None for row in rows) < len(rows), (
        "its own depthwise kernel is no guess"
    )


def test_the_live_regret_is_what_following_the_tree_cost(client: Client) -> None:
    (row,) = live_regret(client.app.state.service, GPU.id)
    assert (row.problem.short, row.advised, row.fastest, row.slowdown) == (LAYER, FAST, FAST, 1.0)
    assert live_regret(client.app.state.service, "nvidia-h200") == [], "what ships was not measured here"
    page = shown(client.get("/models"))
    assert "Live regret : on 1 layer measured here the tree's choice is 1.000× the fastest" in page.text
    registry = client.app.state.service.registry
    first = registry.active(GPU.id).id
    second = registry.add(small_tree({FAST: 0.03, SLOW: 0.02, LEAN: 0.01}))
    client.post("/models/activate", data={"device": GPU.id, "model": second}, headers=HTMX)
    try:
        (row,) = live_regret(client.app.state.service, GPU.id)
        assert (row.advised, row.fastest) == (LEAN, FAST)
        assert row.slowdown == pytest.approx(TIMES_MS[LEAN] / TIMES_MS[FAST])
        assert "Slowdown over retrainings" in shown(client.get("/models")).text, "two trees make a course"
    finally:
        client.post("/models/activate", data={"device": GPU.id, "model": first}, headers=HTMX)


def test_a_store_that_cannot_be_read_costs_the_regret_and_not_the_page(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regret, "COLUMNS", [literal_column("no_such_column")])
    answer = client.get("/tables/regret.json", params={"device": GPU.id})
    assert answer.status_code == 503
    assert "no_such_column" not in answer.text, "an error of the database says nothing of its statement"
    assert "Live regret" not in shown(client.get("/models")).text


def test_the_course_of_the_regret_is_drawn_from_perfect_up() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    problem = ConvProblem.parse(LAYER)
    rows = [Regretted(replace(problem, n=n), at, SLOW, FAST, slowdown) for n, slowdown in ((1, 1.0), (2, 4.0))]
    view = learning.regret_view(rows)
    assert view is not None
    assert (view.mean, view.worst) == (pytest.approx(2.0), 4.0)
    each, course = view.chart.curves
    assert each.spots[0].y > each.spots[1].y, "worse is higher up"
    assert course.spots[-1].title == "2.000×"
    assert view.chart.ticks[0][0] == "1.0×"
    assert learning.regret_view([]) is None


def test_the_guide_leads_to_the_documentation(client: Client) -> None:
    page = shown(client.get("/guide"))
    for address in ("/docs", "/openapi.json", "/problems", "/compare", "/search"):
        assert page.all("a", href=address)
        assert client.get(address).status_code == 200
    assert shown(client.get("/")).all("a", href="/guide")
