"""The pages as HTML: what they say, what they refuse, and that they keep nobody waiting."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest

from conv_advisor.app.main import create_app
from conv_advisor.app.routes import pages
from conv_advisor.app.settings import Settings
from conv_advisor.app.web import networks as networks_page
from conv_advisor.app.web import render, text
from conv_advisor.app.web.measuring import MAX_RUNNING
from conv_advisor.app.web.models import JUDGED_ON
from conv_advisor.app.workers.engine import Engine
from conv_advisor.data import networks
from conv_advisor.data.errors import StoreError, WorkerError
from conv_advisor.data.measurement import Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.registry.on_disk import SHIPPED
from tests.app.serving import (
    CRASHING,
    FAST,
    GPU,
    HANGING,
    LAYER,
    LEAN,
    REFUSED,
    SLOW,
    TIMES_MS,
    Client,
    measure_enough,
    serving,
    small_tree,
)
from tests.processes import eventually

HTMX = {"hx-request": "true"}
PAGES = (
    "/",
    "/networks",
    "/networks/alexnet",
    "/plan",
    "/compare",
    "/search",
    "/guide",
    "/map",
    "/models",
    "/jobs",
    "/status",
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def client(home: Path) -> Iterator[Client]:
    with serving(home, convolution_deadline_s=8.0) as client:
        assert eventually(lambda: client.get("/readyz").status_code == 200)
        yield client


_JOIN = "\0"
"""Between words that a place for a line break divides."""


class Found(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)
        self.text = " ".join(" ".join(self.words).replace(f" {_JOIN} ", "").split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "wbr":
            self.words.append(_JOIN)

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [
            attributes
            for name, attributes in self.tags
            if name == tag and all(attributes.get(key) == value for key, value in wanted.items())
        ]

    def ids(self) -> list[str]:
        return [str(attributes["id"]) for _, attributes in self.tags if "id" in attributes]


def shown(response: httpx.Response, status: int = 200) -> Found:
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("text/html")
    return Found(response.text)


@pytest.mark.parametrize("path", [*PAGES, f"/?layer={LAYER}", "/?layer=x", "/networks/lenet", "/jobs/none"])
def test_every_page_is_strict_whole_and_of_this_service_alone(client: Client, path: str) -> None:
    response = client.get(path)
    page = Found(response.text)
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["cache-control"] == "no-store"
    styles = re.findall(r"<style>(.*?)</style>", response.text, re.DOTALL)
    assert styles == [(render.STATIC / "page.css").read_text()] * response.text.startswith("<!doctype"), "or a part"
    assert "<style>" not in client.get(path, headers=HTMX).text, "a page is there that has it"
    for style in styles:
        assert f"'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'" in policy
    assert not page.all("link", rel="stylesheet")
    assert not [attributes for _, attributes in page.tags if "style" in attributes]
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert all(str(attributes.get("src")).startswith("/static/") for attributes in page.all("script"))
    links = [
        value for _, attributes in page.tags for key in ("href", "src", "action") if (value := attributes.get(key))
    ]
    assert all(re.match(r"[/#]", link) for link in links), links
    assert len(set(page.ids())) == len(page.ids()), "an id stands for two things"


def test_what_a_page_refers_to_exists(client: Client) -> None:
    page = shown(client.get("/map"))
    references = [attributes["src"] for attributes in page.all("script") if attributes.get("src")]
    references += [attributes["href"] for attributes in page.all("link")]
    assert len(references) == 5
    for reference in references:
        response = client.get(str(reference))
        assert response.status_code == 200, reference
        assert "immutable" in response.headers["cache-control"]
    assert client.get("/static/page.css").headers["cache-control"] == "no-cache"
    assert client.get("/static/../render.py").status_code == 404


def test_vendored_libraries_are_those_that_are_noted() -> None:
    folder = render.STATIC / "vendor"
    lines = re.findall(r"\((\S+\.LICENSE)\), (\S+), \S+, ([0-9a-f]{64})", (folder / "VENDORED").read_text())
    assert {name for _, name, _ in lines} == {path.name for path in folder.glob("*.*s")}
    for licence, name, digest in lines:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
        assert (folder / licence).stat().st_size > 100
    assert "://" not in (folder / "VENDORED").read_text()
    for script in folder.glob("*.js"):
        for name in re.findall(r"see (\S+\.LICENSE\.txt)", script.read_text()[:500]):
            assert (folder / name).stat().st_size > 100, "licences that a bundle names are beside it"


def test_the_style_that_the_policy_allows_is_the_one_that_plot_adds() -> None:
    plot = (render.STATIC / "vendor" / "plot.min.js").read_text()
    (template,) = re.findall(r'\.append\("style"\)\.text\(`(:where\(\.\$\{\w+\}\) \{(?:\s|\\n)+--plot[^`]*)`', plot)
    assert re.sub(r"\$\{\w+\}", render.CHART_CLASS, template).replace("\\n", "\n") == render.PLOT_STYLE
    assert f'className: "{render.CHART_CLASS}"' in (render.STATIC / "page.js").read_text()


def test_advice_shows_the_ranking_the_decisions_and_what_is_out(client: Client) -> None:
    page = shown(client.get("/", params={"layer": LAYER, "device": "fake-gpu"}))
    assert f"Fastest {FAST}" in page.text
    rows = page.all("li", **{"class": "row best"}) + page.all("li", **{"class": "row"})
    assert len(rows) == len(TIMES_MS)
    advice = client.get("/v1/advice", params={"layer": LAYER, "device": "fake-gpu"}).json()
    assert [text.time(choice["time_ms"]) in page.text for choice in advice["ranking"]] == [True] * len(rows)
    assert "2.00×" in page.text
    assert "batch 2 ≤ 64" in page.text
    assert "variants are out, and why" in page.text
    assert page.all("input", name="layer", value=LAYER)
    assert page.all("input", name="k", value="6")
    assert page.all("p", id="announce")
    assert f"{LAYER}: {FAST}" in page.text


def test_measured_stands_beside_predicted(tmp_path: Path) -> None:
    layer = "8-2-3-6-4"
    with serving(tmp_path) as own:
        assert own.post("/v1/convolutions", json={"layer": layer, "variant": SLOW}).status_code == 200
        page = shown(own.get("/", params={"layer": layer, "device": "fake-gpu"}))
    row = page.text[page.text.index(f"{SLOW} ") :]
    assert "predicted" in row
    assert "error 1.0e-07 measured" in row
    assert "error ≤ at most" in page.text[page.text.index(f"{FAST} ") : page.text.index(f"{SLOW} ")]
    assert page.all("path", **{"class": "mark"})
    assert page.all("rect", **{"class": "fill measured"})
    assert page.all("rect", **{"class": "fill predicted"})


@pytest.mark.parametrize(
    ("asked", "status", "said", "field"),
    [
        ({"layer": "fourteen"}, 400, "size-batch-filter-filters-depth", "layer"),
        ({"layer": LAYER, "dtype": "int8"}, 400, "float32, tf32", "dtype"),
        ({"layer": LAYER, "device": "no-gpu"}, 404, "unknown device", None),
        ({"layer": LAYER, "workspace_mib": "much"}, 400, "number of MiB", "workspace_mib"),
        ({"by": "fields", "n": "1", "c": "4", "h": "8", "w": "8", "k": "zero", "r": "3", "s": "3"}, 400, "k is", "k"),
        ({"by": "fields", "n": "1", "c": "4", "h": "8", "w": "8", "k": "6", "r": "3"}, 400, "s is", "s"),
    ],
)
def test_what_is_wrong_is_said_beside_what_was_typed(
    client: Client, asked: dict[str, str], status: int, said: str, field: str | None
) -> None:
    page = shown(client.get("/", params=asked), status)
    (alert,) = page.all("div", role="alert")
    assert alert.get("data-field") == field
    assert said in page.text
    for name, value in asked.items():
        if name in ("layer", "k", "workspace_mib"):
            assert page.all("input", name=name, value=value)


def test_fields_make_the_layer_when_they_are_chosen(client: Client) -> None:
    sizes = {"n": "2", "c": "4", "h": "8", "w": "8", "k": "6", "r": "3", "s": "3", "pad_h": "1", "pad_w": "1"}
    page = shown(client.get("/", params={"by": "fields", "layer": "7-1-1-1-1", "device": "fake-gpu", **sizes}))
    assert f"{LAYER}: {FAST}" in page.text
    strided = sizes | {"stride_h": "2", "stride_w": "2"}
    response = client.get("/", params={"by": "fields", "device": "fake-gpu", **strided})
    assert "8-2-3-6-4-stride2" in shown(response).text
    again = shown(client.get(response.headers["hx-push-url"]))
    assert "8-2-3-6-4-stride2" in again.text, "its own address leads back to the same layer"


def test_what_is_typed_cannot_become_markup(client: Client) -> None:
    evil = "\"><script>alert(1)</script>'"
    for path in ("/", "/map", "/networks/alexnet"):
        response = client.get(path, params={"layer": evil, "device": evil, "batch": evil, "x": evil, "dtype": evil})
        assert "<script>alert" not in response.text
    assert "<script>alert" not in client.get(f"/networks/{evil}").text


def test_without_a_model_and_measurements_it_says_what_to_do(tmp_path: Path) -> None:
    with serving(tmp_path, has_tree=False) as own:
        assert eventually(lambda: own.app.state.service.worker.device is not None)
        page = shown(own.get("/", params={"layer": LAYER, "device": "fake-gpu"}), 409)
        assert "No advice yet" in page.text
        assert page.all("form", action="/measurements")
        own.post("/v1/convolutions", json={"layer": LAYER, "variant": LEAN})
        advised = shown(own.get("/", params={"layer": LAYER, "device": "fake-gpu"}))
        assert f"Fastest {LEAN}" in advised.text
        assert "No model took part" in advised.text


def test_it_works_without_a_worker(tmp_path: Path) -> None:
    def refuse(_settings: Settings) -> Engine:
        raise WorkerError("no such device")

    client = Client(create_app(Settings(home=tmp_path), open_engine=refuse, timings=tmp_path / "nothing"))
    try:
        assert eventually(lambda: "no such device" in client.get("/readyz").text)
        page = shown(client.get("/", params={"layer": "14-1-3-256-128", "device": "nvidia-h200"}))
        assert "Fastest" in page.text
        assert "The worker is not ready" in page.text
        assert "no such device" in page.text
        for path in PAGES:
            assert client.get(path).status_code == 200, path
        refused = client.post("/measurements", data={"layer": LAYER}, headers=HTMX)
        assert "does not start" in shown(refused, 503).text
    finally:
        client.close()


def test_a_network_has_every_layer_with_its_advice(client: Client) -> None:
    page = shown(client.get("/networks/vgg19", params={"batch": "8", "dtype": "float16", "layout": "nhwc"}))
    links = [str(link["href"]) for link in page.all("a") if "network=vgg19" in str(link["href"])]
    assert len(links) == len(networks.layers("vgg19"))
    assert all("dtype=float16" in link and "layout=nhwc" in link for link in links)
    first = shown(client.get(links[0]))
    assert "layer 1 of 9" in first.text
    assert (
        page.all("option", value="8", selected="") or 'value="8" selected' in client.get("/networks/vgg19?batch=8").text
    )
    assert "batch is &#39;0&#39;" in client.get("/networks/vgg19?batch=0").text
    assert client.get("/networks/lenet").status_code == 404


def test_the_map_is_the_landscape_in_a_drawing_and_a_table(client: Client) -> None:
    asked = {"layer": "14-1-3-256-128", "device": "nvidia-h200", "x": "filters", "y": "depth"}
    page = shown(client.get("/map", params=asked))
    answer = client.get("/v1/landscapes", params=asked).json()
    for variant in answer["variants"]:
        assert variant in page.text
    cells = [letter for row in answer["winners"] for letter in row]
    assert len(page.all("td")) == len(cells)
    (figure,) = page.all("div", id="map")
    drawn = json.loads(str(figure["data-map"]))
    assert drawn["winners"] == answer["winners"]
    assert [variant["name"] for variant in drawn["variants"]] == answer["variants"]
    assert (drawn["x"]["values"], drawn["y"]["values"]) == (answer["x"]["values"], answer["y"]["values"])
    assert drawn["layers"][3][2] == f"14-1-3-{drawn['x']['values'][2]}-{drawn['y']['values'][3]}"
    assert "another axis" in shown(client.get("/map", params=asked | {"y": "filters"}), 400).text
    assert shown(client.get("/map", params=asked | {"x": "weight"}), 400).all("div", role="alert")


def test_a_cell_of_the_map_is_its_own_layer_within_the_same_limits(client: Client) -> None:
    asked = {"layer": "20x14-1-3x1-64-32-stride2x1-pad1x0-dilation1x1-groups32", "device": "fake-gpu"}
    limits = {"workspace_mib": "4", "deterministic": "true"}
    (figure,) = shown(client.get("/map", params=asked | limits | {"x": "size", "y": "filters"})).all("div", id="map")
    drawn = json.loads(str(figure["data-map"]))
    size, filters = drawn["x"]["values"].index(28), drawn["y"]["values"].index(96)
    assert drawn["layers"][filters][size] == "28-1-3x1-96-32-stride2x1-groups32"
    assert drawn["layers"][drawn["y"]["values"].index(80)][size] is None, "80 filters are not 32 groups"
    assert drawn["query"] == {"dtype": "float32", "layout": "nchw", "device": "fake-gpu"} | limits


def test_explanations_and_landscapes_answer_over_the_api_too(client: Client) -> None:
    asked = {"layer": LAYER, "device": "fake-gpu"}
    (decision,) = client.get("/v1/explanations", params=asked).json()["decisions"]
    assert (decision["label"], decision["actual"], decision["limit"]) == ("batch", 2.0, 64.0)
    assert decision["taken"] == {"n_leaves": 1, "favourite": FAST, "share": 1.0}
    landscape = client.get("/v1/landscapes", params=asked).json()
    assert landscape["variants"] == [FAST]
    assert {winner for row in landscape["winners"] for winner in row} == {0}
    assert client.get("/v1/landscapes", params=asked | {"x": "batch"}).status_code == 400
    assert client.get("/v1/landscapes", params=asked | {"x": "weight"}).status_code == 422
    assert client.get("/v1/explanations", params={"layer": LAYER, "device": "no-gpu"}).status_code == 404


def fragment_until(client: Client, response: httpx.Response, is_done: Callable[[str], bool]) -> str:
    """Ask as htmx does, until it is so."""
    path = re.search(r"/measurements/[\w-]+", response.text)
    assert path, response.text
    assert eventually(lambda: is_done(client.get(path[0], headers=HTMX).text))
    return path[0]


def test_measuring_runs_every_variant_and_puts_it_beside_its_prediction(client: Client) -> None:
    form = {"layer": "14-1-3-256-128", "dtype": "float32", "layout": "nchw"}
    asked = client.post("/measurements", data=form, headers=HTMX)
    path = fragment_until(client, asked, lambda html: "Done:" in html)
    response = client.get(path, headers=HTMX)
    page = Found(response.text)
    assert response.headers["hx-trigger"] == "measured"
    assert not [attributes for _, attributes in page.tags if "hx-trigger" in attributes], "it asks for no more"
    predicted = Advisor(small_tree(TIMES_MS)).advise(ConvProblem.parse(form["layer"])).ranking
    assert {choice.variant for choice in predicted} == {FAST, SLOW, LEAN}
    for choice in predicted:
        ms = TIMES_MS[choice.variant]
        row = f"{choice.variant} {text.time(ms)} {text.time(choice.time_ms)} {text.slowdown(ms / choice.time_ms)}"
        assert row in page.text
    assert f"{CRASHING} crashed" in page.text
    assert f"{REFUSED} not supported: as recorded" in page.text
    assert f"{HANGING} timed out" in page.text
    stored = client.app.state.service.records.summaries([ConvProblem.parse(form["layer"])], GPU.id)
    outcomes = {name: summary.outcome for name, summary in stored[f"{form['layer']}-float32-nchw"].items()}
    assert outcomes[FAST] is Outcome.MEASURED
    failed = {CRASHING: Outcome.CRASHED, REFUSED: Outcome.NOT_SUPPORTED, HANGING: Outcome.TIMED_OUT}
    assert {name: outcomes[name] for name in failed} == failed, "an attempt that failed is kept as well"
    assert form["layer"] in shown(client.get("/jobs")).text
    assert "<!doctype html>" in client.get(path).text, "it has a page of its own for browsers without scripts"


def test_measuring_only_the_best_measures_five(client: Client) -> None:
    asked = client.post("/measurements", data={"layer": LAYER, "which": "best"}, headers=HTMX)
    path = fragment_until(client, asked, lambda html: "Done:" in html)
    assert f"of {min(pages.BEST, len(VARIANTS))} in" in Found(client.get(path, headers=HTMX).text).text


def test_what_is_measured_is_shown_where_it_cannot_be_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path, convolution_deadline_s=8.0) as own:

        def refuse(_measurements: object) -> None:
            raise StoreError("database is locked")

        monkeypatch.setattr(own.app.state.service.store, "append", refuse)
        asked = own.post("/measurements", data={"layer": LAYER, "which": "best"}, headers=HTMX)
        path = fragment_until(own, asked, lambda html: "Done:" in html)
        said = Found(own.get(path, headers=HTMX).text).text
        assert "Not in the store database is locked" in said
        assert f"{FAST} {text.time(TIMES_MS[FAST])}" in said
        assert "Every sample is in the store" not in said


def test_a_measurement_can_be_cancelled_and_stays_so(tmp_path: Path) -> None:
    """The process that hangs is killed: what is asked next is answered long before the deadline."""
    with serving(tmp_path, convolution_deadline_s=600.0) as own:
        asked = own.post("/measurements", data={"layer": LAYER}, headers=HTMX)
        path = fragment_until(own, asked, lambda html: "cudnn.fft_tiling" in html.split("now")[-1][:60])
        cancelled = shown(own.post(f"{path}/cancel", headers=HTMX))
        assert "Cancelled" in cancelled.text
        assert "Cancelled" in shown(own.post(f"{path}/cancel", headers=HTMX)).text
        ran = own.post("/v1/convolutions", json={"layer": LAYER, "variant": FAST})
        assert ran.status_code == 200


def test_a_layer_that_would_fill_the_device_is_not_measured(client: Client) -> None:
    asked = client.post("/measurements", data={"layer": "4096-64-1-1-1"}, headers=HTMX)
    assert "allowed on fake-gpu" in shown(asked, 507).text


def test_measurements_do_not_pile_up(tmp_path: Path) -> None:
    with serving(tmp_path, convolution_deadline_s=60.0) as own:
        answers = [own.post("/measurements", data={"layer": LAYER}, headers=HTMX) for _ in range(MAX_RUNNING + 1)]
        assert [answer.status_code for answer in answers] == [200] * MAX_RUNNING + [503]
        assert "are running already" in answers[-1].text


def test_without_scripts_forms_lead_to_pages(client: Client) -> None:
    asked = client.post("/measurements", data={"layer": LAYER, "which": "best"})
    assert asked.status_code == 303
    assert (
        "noscript" in client.get(asked.headers["location"]).text
        or "Done:" in client.get(asked.headers["location"]).text
    )
    measure_enough(client)
    assert client.post("/models/retrain", data={"device": GPU.id}).headers["location"] == "/jobs"


def test_a_form_from_another_site_is_refused(client: Client) -> None:
    form = {"layer": LAYER}
    for headers in ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        for path in (
            "/measurements",
            "/models/retrain",
            "/models/activate",
            "/jobs/x/cancel",
            "/measurements/x/cancel",
        ):
            assert client.post(path, data=form, headers=headers).status_code == 403, (path, headers)
    assert client.post("/jobs/x/cancel", headers={"origin": "http://localhost"}).status_code == 404


def test_a_form_too_long_or_unreadable_is_refused(client: Client) -> None:
    assert client.post("/measurements", content=b"layer=" + b"1" * 20_000).status_code == 413
    assert client.post("/measurements", content=b"layer=\xff").status_code == 400
    assert client.post("/measurements", content=b"&".join(b"a=1" for _ in range(200))).status_code == 400
    assert client.post("/measurements", data={"layer": "x"}, headers=HTMX).status_code == 400


def test_models_are_promoted_and_rolled_back(client: Client, home: Path) -> None:
    registry = client.app.state.service.registry
    first = registry.active("fake-gpu").id
    second = registry.add(small_tree({FAST: 0.03, SLOW: 0.02, LEAN: 0.01}))
    before = shown(client.get("/models"))
    assert "1.100×" in before.text
    assert before.all("input", name="model", value=second)
    assert not before.all("input", name="model", value=first), "the one in use needs no button"
    answer = client.post("/models/activate", data={"device": "fake-gpu", "model": second}, headers=HTMX)
    assert f"Tree {second} answers now." in shown(answer).text
    assert registry.active("fake-gpu").id == second
    client.post("/models/activate", data={"device": "fake-gpu", "model": first}, headers=HTMX)
    assert registry.active("fake-gpu").id == first
    assert (
        client.post("/models/activate", data={"device": "fake-gpu", "model": "none"}, headers=HTMX).status_code == 404
    )


def test_the_first_decisions_of_a_tree_in_use_are_in_words(client: Client) -> None:
    page = shown(client.get("/models"))
    assert "Its first decisions, and who wins on either side" in page.text, "the tree of the H200 ships"
    assert "float16 NHWC, " in page.text
    assert "groups above 1: " in page.text


def test_what_a_retrained_tree_changes_is_shown_and_a_card_that_cannot_be_read_is_passed_over(client: Client) -> None:
    registry = client.app.state.service.registry
    one = {"problem": "7-1-3-8-8-float32-nchw", "before": SLOW, "after": FAST}
    one |= {"slowdown_before": 1.5, "slowdown_after": 1.0}
    said = {
        "champion": "before",
        "n_problems": 9,
        "n_other": 2,
        "n_better": 1,
        "n_worse": 0,
        "better": [one],
        "worse": [],
    }
    for best_ms, changes in ((0.031, said), (0.032, {"n_problems": "many"})):
        tree = small_tree({FAST: best_ms, SLOW: 0.02, LEAN: 0.01})
        registry.add(replace(tree, card=tree.card | {"changes": changes}))
    page = shown(client.get("/models"))
    assert page.text.count("Against the tree before") == 2  # the shipped tree says so too
    assert "1 better, 0 worse of 9" in page.text
    shipped = json.loads((SHIPPED / "nvidia-h200" / "card.json").read_text())["changes"]
    counts = f"{shipped['n_better']:,} better, {shipped['n_worse']:,} worse of {shipped['n_problems']:,}"
    assert counts in page.text, "of the shipped tree"
    assert "7-1-3-8-8-float32-nchw" in page.text
    assert "1.50×" in page.text


def test_shipped_scores_are_told_by_precision(client: Client) -> None:
    card = json.loads((SHIPPED / "nvidia-h200" / "card.json").read_text())
    text = shown(client.get("/models")).text
    assert "bfloat16 nhwc" in text
    places = []
    for part, title in JUDGED_ON.items():
        overall = card["scores"][part]["overall"]
        said = (
            f"{title} Slowdown, geometric mean {overall['geometric_mean']:.3f}× 95th percentile {overall['p95']:.2f}×"
        )
        assert said in text, "what is not said of which networks is taken for the better one"
        places.append(text.index(said))
    assert places == sorted(places), "the strictest comes first"


def test_a_retrain_on_too_little_is_refused_where_it_is_asked_for(tmp_path: Path) -> None:
    with serving(tmp_path) as own:
        refused = own.post("/models/retrain", data={"device": GPU.id}, headers=HTMX)
        assert refused.status_code == 409
        assert "0 problems were measured, and 0 are left to train on" in Found(refused.text).text
        assert own.post("/models/retrain", data={"device": GPU.id}).status_code == 409, "without scripts too"
        assert own.get("/v1/jobs").json()["jobs"] == []


def test_a_retrain_is_a_job_that_shows_how_it_ends(client: Client) -> None:
    measure_enough(client)
    asked = client.post("/models/retrain", data={"device": GPU.id}, headers=HTMX)
    (cancel,) = [str(form["action"]) for form in shown(asked).all("form")]
    job = cancel.removesuffix("/cancel")
    assert eventually(lambda: "failed" in client.get(job, headers=HTMX).text)
    ended = client.get(job, headers=HTMX)
    assert ended.headers["hx-trigger"] == "job-ended"
    assert "hx-get" not in ended.text
    assert "at least" in Found(ended.text).text
    assert "<!doctype html>" in client.get(job).text
    assert "failed" in shown(client.post(cancel, headers=HTMX)).text
    assert client.post("/models/retrain", data={"device": "no-gpu"}, headers=HTMX).status_code == 404


def test_a_retrain_whose_answer_was_lost_is_one_job_and_the_next_is_another(client: Client) -> None:
    def key_of(page: Found) -> str:
        (field,) = page.all("input", id="retrain-key")
        return str(field["value"])

    def job_of(page: Found) -> str:
        return next(name for name in page.ids() if name.startswith("job-"))

    measure_enough(client)
    key = key_of(shown(client.get("/models")))
    lost, again = (
        shown(client.post("/models/retrain", data={"device": GPU.id, "key": key}, headers=HTMX)) for _ in range(2)
    )
    assert job_of(lost) == job_of(again)
    forced = shown(client.post("/models/retrain", data={"device": GPU.id, "key": key, "force": "true"}, headers=HTMX))
    assert job_of(forced) != job_of(lost), "something else was asked for"
    assert again.all("input", id="retrain-key")[0]["hx-swap-oob"] == "true"
    following = shown(client.post("/models/retrain", data={"device": GPU.id, "key": key_of(again)}, headers=HTMX))
    assert job_of(following) != job_of(lost)


def test_the_theme_that_was_chosen_is_in_the_page_from_the_start(client: Client) -> None:
    for cookie, html in (("dark", '<html lang="en" data-theme="dark">'), ("%22evil", '<html lang="en">')):
        assert html in client.get("/", headers={"cookie": f"theme={cookie}"}).text


@pytest.mark.parametrize(
    ("module", "name", "path"),
    [
        (pages, "advice_view", "/"),
        (networks_page, "network_view", "/networks"),
        (pages, "map_view", "/map"),
        (pages, "model_rows", "/models"),
        (pages, "status_view", "/status"),
    ],
)
def test_work_is_done_beside_the_event_loop(
    client: Client, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, path: str
) -> None:
    original, asked_on = getattr(module, name), []

    def noting(*args: Any) -> Any:
        asked_on.append(threading.current_thread())
        return original(*args)

    monkeypatch.setattr(module, name, noting)
    assert client.get(path).status_code == 200
    assert asked_on
    assert client._thread not in asked_on
