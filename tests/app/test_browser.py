"""The page in a real browser: everything a person does there, by pointer, by keyboard, on a phone, in the dark."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect

from conv_advisor.data.store import Store
from conv_advisor.models.registry.on_disk import Registry
from tests.app import picture
from tests.app.browser import DESKTOP, PHONE, Visitor, chromium
from tests.app.serving import FAST, LEAN, SLOW, TIMES_MS, enough_measured, keep_tree, small_tree
from tests.app.test_end_to_end import Server, server
from tests.fakes import SMALL_DEVICE, small_measurements
from tests.onnx_models import block
from tests.processes import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of Playwright's pipes, when it ends
]

PAGES = (
    "/",
    "/?by=fields&n=1&c=3&h=8&w=8&k=4&r=3&s=3",
    "/?layer=nonsense",
    "/?layer=12-1-3-8-8&device=cpu",
    "/?layer=14-1-3-1-1&device=nvidia-h200",
    "/networks/squeezenet",
    "/networks/held-out",
    "/plan?name=squeezenet&device=nvidia-h200&dtype=float16&batches=1,8",
    "/map",
    "/compare?device=nvidia-h200",
    "/search?q=resnet",
    "/guide",
    "/nothing/here",
    "/models",
    "/jobs",
    "/jobs/none",
)
LAYER = "14-1-3-256-128"
MEASURED = "20-1-3-24-16"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    with Store(f"sqlite:///{home / 'conv-advisor.db'}") as store:
        store.append(small_measurements(0.01) + enough_measured())
    Registry(home).add(small_tree({FAST: 0.03, SLOW: 0.02, LEAN: 0.01}))
    keep_tree(home, small_tree(TIMES_MS))
    return home


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def running(browser: Browser, home: Path) -> Iterator[Server]:
    with server(home) as running:
        assert eventually(lambda: running.http.get("/readyz").status_code == 200)
        yield running


@pytest.fixture
def visitor(browser: Browser, running: Server) -> Iterator[Visitor]:
    visitor = Visitor(browser, f"http://127.0.0.1:{running.port}")
    yield visitor
    visitor.check()
    visitor.close()


@pytest.fixture
def on_phone(browser: Browser, running: Server) -> Iterator[Visitor]:
    address = f"http://127.0.0.1:{running.port}"
    visitor = Visitor(browser, address, viewport=PHONE, has_touch=True, is_mobile=True, device_scale_factor=2)
    yield visitor
    visitor.check()
    visitor.close()


def is_announced(page: Page, beginning: str) -> None:
    """Wait until what is said to those who hear the page begins so."""
    expect(page.locator("#announce")).to_have_text(re.compile(f"^{re.escape(beginning)}"))


def note(page: Page, selector: str) -> None:
    """Have the page note whether there is such a part from now on: it may be gone before anybody looks."""
    page.evaluate(
        """selector => {
            window.wasThere = false;
            const look = () => { window.wasThere ||= document.querySelector(selector) !== null; };
            new MutationObserver(look).observe(document.body, {childList: true, subtree: true});
        }""",
        selector,
    )


def was_there(page: Page) -> bool:
    return bool(page.evaluate("window.wasThere"))


def opened_map(visitor: Visitor, asked: str) -> Page:
    """The map, once its script has drawn it, which may be after the page has loaded."""
    page = visitor.open(f"/map?{asked}")
    expect(page.locator("#map svg")).to_be_visible()
    return page


def test_a_layer_is_typed_and_advised_on_without_a_reload(visitor: Visitor) -> None:
    page = visitor.open(f"/?device=nvidia-h200&layer={LAYER}")
    page.evaluate("window.isSame = true")
    page.get_by_label("Layer", exact=True).fill("7-1-1-32-832")
    page.get_by_role("button", name="Advise").click()
    expect(page).to_have_title(re.compile("."))
    expect(page.locator("#announce")).to_contain_text("7-1-1-32-832")
    expect(page).to_have_url(re.compile("layer=7-1-1-32-832"))
    assert page.evaluate("window.isSame"), "the page was not loaded anew"
    page.get_by_label("float16", exact=True).check()
    expect(page).to_have_url(re.compile("dtype=float16"))
    page.get_by_label("nhwc", exact=True).check()
    expect(page.locator("#verdict")).to_contain_text("float16 nhwc")
    page.get_by_label("Device").select_option("fake-gpu")
    expect(page.locator("#verdict")).to_contain_text("fake-gpu")
    page.go_back()
    expect(page.locator("#verdict")).to_contain_text("nvidia-h200")


def test_a_model_that_is_chosen_has_a_plan_and_what_is_asked_beside_it_counts(visitor: Visitor) -> None:
    page = visitor.open("/plan?device=nvidia-h200")
    model = {"name": "block.onnx", "mimeType": "application/octet-stream", "buffer": block()}
    page.get_by_label("An ONNX model").set_input_files([model])
    expect(page.get_by_role("heading", name="block.onnx, batch 1")).to_be_visible()
    is_announced(page, "The plan of block.onnx is there")
    page.get_by_label("Batches").fill("2,8")
    page.keyboard.press("Tab")
    expect(page.get_by_role("heading", name="block.onnx, batch 8")).to_be_visible()
    page.get_by_label("An ONNX model").set_input_files([{**model, "name": "no.onnx", "buffer": b"no model"}])
    expect(page.locator("#answer").get_by_role("alert")).to_contain_text("cannot be parsed")
    page.get_by_label("Or a network that ships").select_option("squeezenet")
    expect(page.get_by_role("heading", name=re.compile("squeezenet, batch 2"))).to_be_visible()
    expect(page).to_have_url(re.compile("name=squeezenet"))


def test_fields_follow_the_short_form_and_make_another_layer(visitor: Visitor) -> None:
    page = visitor.open("/?device=nvidia-h200")
    page.get_by_label("Layer", exact=True).fill("28-8-5-96-16")
    page.keyboard.press("Enter")
    expect(page.locator("#announce")).to_contain_text("28-8-5-96-16")
    page.get_by_label("By fields").check()
    expect(page.get_by_label("filters", exact=True)).to_have_value("96")
    page.get_by_label("stride down").fill("2")
    page.get_by_label("stride across").fill("2")
    page.keyboard.press("Enter")
    expect(page.locator("#verdict")).to_contain_text("28-8-5-96-16-stride2")


def test_a_refused_value_is_marked_where_it_was_typed_and_the_mark_goes(visitor: Visitor) -> None:
    page = visitor.open("/?device=nvidia-h200")
    field = page.get_by_label("Layer", exact=True)
    field.fill("fourteen")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("size-batch-filter-filters-depth")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_have_value("fourteen")
    expect(field).to_be_focused()
    field.fill(LAYER)
    page.keyboard.press("Enter")
    expect(page.locator("#verdict")).to_be_visible()
    expect(field).not_to_have_attribute("aria-invalid", "true")


def test_a_network_is_clicked_through(visitor: Visitor) -> None:
    page = visitor.open("/?device=nvidia-h200")
    page.get_by_role("link", name="ResNet-50").click()
    page.get_by_label("Batch").select_option("32")
    expect(page.locator("tbody th").nth(1)).to_have_text("56-32-1-64-64")
    page.get_by_role("link", name="56-32-1-64-64").click()
    expect(page.locator("#verdict")).to_contain_text("layer 2 of 20")
    page.locator("a[rel=next]").click()
    expect(page.locator("#verdict")).to_contain_text("layer 3 of 20")
    page.get_by_label("bfloat16", exact=True).check()
    expect(page.locator("#verdict")).to_contain_text("bfloat16")
    expect(page.locator("#verdict")).to_contain_text("layer 3 of 20")
    page.locator("a[rel=prev]").click()
    expect(page.locator("#verdict")).to_contain_text("layer 2 of 20")


def test_the_bars_are_as_long_as_the_times(visitor: Visitor) -> None:
    page = visitor.open("/?device=fake-gpu&layer=8-2-3-6-4")
    rows = page.locator(".ranking li.row")
    widths = rows.locator("rect.fill").evaluate_all("bars => bars.map(bar => bar.getBoundingClientRect().width)")
    assert len(widths) == len(TIMES_MS)
    assert [round(width / widths[0], 1) for width in widths] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("path", ["/", "/map", "/compare"])
def test_a_refused_layer_is_in_the_address(visitor: Visitor, path: str) -> None:
    page = visitor.open(f"{path}?device=fake-gpu&layer={LAYER}")
    field = page.locator("#ask input[name=layer]")
    field.fill("Conv2d(64, 128, kernel_size=(3, 3))")
    field.press("Enter")
    expect(page.locator("#problem")).to_contain_text("behind, Conv2d(...) 1x64x56x56")
    expect(field).to_have_attribute("aria-invalid", "true")
    page.reload()
    expect(field).to_have_value("Conv2d(64, 128, kernel_size=(3, 3))")
    field.fill("Conv2d(64, 128, kernel_size=(3, 3), padding=same) 1x64x56x56")
    field.press("Enter")
    expect(page).to_have_url(re.compile("layer=56-1-3-128-64"))


def test_a_program_is_chosen_and_copied(visitor: Visitor) -> None:
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=visitor.address)
    page = visitor.open(f"/?device=fake-gpu&layer={LAYER}")
    program = page.get_by_role("region", name="Program")
    expect(program).to_contain_text("cudnnConvolutionForward")
    page.get_by_role("link", name="PyTorch").click()
    expect(program).to_contain_text("import torch")
    page.locator("#snippet").get_by_role("button", name="Copy").click()
    expect(page.locator("#announce")).to_have_text("The program was copied")
    assert page.evaluate("navigator.clipboard.readText()") == program.inner_text()


def test_the_front_is_drawn_and_told(visitor: Visitor) -> None:
    page = visitor.open("/?device=nvidia-h200&layer=15-16-3-250-120&dtype=float16")
    front = page.get_by_role("table", name="Variants on the Pareto front").locator("tbody tr")
    assert page.locator(".scatter circle.on").count() == front.count() > 0
    assert page.locator(".scatter circle.off").count() > 5
    off = page.get_by_role("table", name="Variants off the Pareto front").locator("tbody tr")
    page.get_by_text(re.compile("off the front")).click()
    before = off.count()
    page.get_by_text("Limits", exact=True).click()
    page.get_by_label("Error at most, for trade-offs").fill("5e-4")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("max_error=5e-4"))
    page.get_by_text(re.compile("off the front")).click()
    assert 0 < off.count() < before
    expect(page.locator("#tradeoffs")).to_contain_text(re.compile("NHWC would (be|take)"))


def test_every_dot_says_what_it_is_and_no_label_lies_on_another(browser: Browser, running: Server) -> None:
    address = f"http://127.0.0.1:{running.port}"
    for width in (320, 390, 768, 1280, 1920):
        visitor = Visitor(browser, address, viewport={"width": width, "height": 900})
        for layer in ("15-16-3-250-120", "56-32-1-64-64", "7-1-3-512-512"):
            page = visitor.open(f"/?device=nvidia-h200&layer={layer}&dtype=float16")
            boxes = page.locator(".scatter .label").evaluate_all(_BOXES)
            assert boxes
            for place, one in enumerate(boxes):
                assert not [other for other in boxes[place + 1 :] if _overlap(one, other)], (width, layer)
            ticks = page.locator("#scatter .x-axis text:visible").evaluate_all(_BOXES)
            assert all(one["right"] < other["left"] for one, other in itertools.pairwise(ticks)), (width, layer)
        last = page.locator(".spot").last
        last.locator(".reach").hover()
        expect(last.locator(".tip")).to_be_visible()
        expect(last.locator(".tip")).to_contain_text(re.compile("workspace.*error"))
        visitor.check()
        visitor.close()


_BOXES = """elements => elements.map(element => {
    const box = element.getBoundingClientRect();
    return {left: box.left, right: box.right, top: box.top, bottom: box.bottom};
})"""


def _overlap(one: dict[str, float], other: dict[str, float]) -> bool:
    is_beside = one["right"] <= other["left"] or other["right"] <= one["left"]
    return not is_beside and one["top"] < other["bottom"] - 2 and other["top"] < one["bottom"] - 2


def _is_in_view(page: Page, button: Locator) -> bool:
    box, size = button.bounding_box(), page.viewport_size
    return box is not None and size is not None and box["y"] >= 0 and box["y"] + box["height"] <= size["height"]


@pytest.mark.parametrize("path", ["/?device=nvidia-h200", "/map?device=nvidia-h200", "/compare?device=nvidia-h200"])
@pytest.mark.parametrize("viewport", [{"width": 1280, "height": 420}, PHONE], ids=["low", "phone"])
def test_the_button_is_always_in_view(browser: Browser, running: Server, viewport: Any, path: str) -> None:
    visitor = Visitor(browser, f"http://127.0.0.1:{running.port}", viewport=viewport)
    page = visitor.open(path)
    button = page.locator("#ask button.primary")
    for share in (0, 0.3, 0.7):
        page.evaluate("share => scrollTo(0, share * document.documentElement.scrollHeight)", share)
        assert _is_in_view(page, button), share
        page.locator(".ask").evaluate("(aside, share) => aside.scrollTo(0, share * aside.scrollHeight)", share)
        assert _is_in_view(page, button), f"its column is scrolled too, {share}"
    visitor.check()
    visitor.close()


def test_on_a_phone_the_networks_are_one_tap_away(on_phone: Visitor) -> None:
    page = on_phone.open("/?device=nvidia-h200")
    page.locator(".act").get_by_role("link", name="Networks").tap()
    expect(page.locator("#pick").get_by_role("link", name="ResNet-50")).to_be_in_viewport()


def test_on_a_phone_every_page_is_in_the_bar(on_phone: Visitor) -> None:
    page = on_phone.open("/models")
    for link in page.get_by_role("navigation", name="Pages").get_by_role("link").all():
        expect(link).to_be_in_viewport(ratio=1)
    expect(page.locator("[aria-current=page]")).to_have_text("Models")


def test_the_map_is_read_beside_the_pointer(visitor: Visitor) -> None:
    page = opened_map(visitor, f"device=nvidia-h200&layer={LAYER}")
    frame = page.locator("#map svg").bounding_box()
    assert frame
    tip = page.locator("#map-tip")
    for across, down in ((0.2, 0.3), (0.9, 0.85)):
        x, y = frame["x"] + across * frame["width"], frame["y"] + down * frame["height"]
        page.mouse.move(x, y)
        layer, variant = page.locator("#map-cell").inner_text().split(": ")
        expect(tip).to_contain_text(variant)
        expect(tip).to_contain_text(layer)
        box = tip.bounding_box()
        assert box
        beside_x = min(abs(box["x"] - x), abs(box["x"] + box["width"] - x))
        beside_y = min(abs(box["y"] - y), abs(box["y"] + box["height"] - y))
        assert max(beside_x, beside_y) < 40
    page.mouse.move(5, 5)
    expect(tip).to_be_hidden()


def test_two_layers_are_compared_without_a_reload(visitor: Visitor) -> None:
    page = visitor.open(f"/?device=nvidia-h200&layer={LAYER}")
    page.locator("#verdict").get_by_role("link", name="Compare").click()
    page.evaluate("window.isSame = true")
    second = page.get_by_role("group", name="Second")
    second.get_by_label("Layer").fill("28-8-3-64-64")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("table").first).to_contain_text("28-8-3-64-64")
    second.get_by_label("Layout").select_option("nhwc")
    expect(page).to_have_url(re.compile("other_layer=28-8-3-64-64.*other_layout=nhwc"))
    assert page.evaluate("window.isSame")
    page.reload()
    expect(second.get_by_label("Layout")).to_have_value("nhwc")


def test_a_key_leads_to_the_search_which_finds_as_one_types(visitor: Visitor) -> None:
    page = visitor.open("/guide")
    page.keyboard.press("/")
    expect(page.locator("#find")).to_be_focused()
    page.keyboard.type("vgg")
    page.keyboard.press("Enter")
    expect(page.locator("#answer").get_by_role("link", name="VGG19").first).to_be_visible()
    field = page.locator(".finding input")
    field.fill("resnet-50 conv4 3x3")
    expect(page.locator("#answer")).to_contain_text("14-1-3-256-256")
    expect(page).to_have_url(re.compile("conv4"))
    field.press("/")
    expect(field).to_be_focused()
    expect(field).to_have_value("resnet-50 conv4 3x3/")
    field.fill("resnet-50 conv4 3x3")  # with the stroke nothing is found, as soon as the answer to it comes
    page.get_by_role("link", name="14-1-3-256-256").click()
    expect(page.locator("#verdict")).to_contain_text("ResNet-50")


def test_the_call_that_gives_the_same_is_copied(visitor: Visitor, running: Server) -> None:
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=visitor.address)
    page = visitor.open(f"/?device=fake-gpu&layer={LAYER}")
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator("#announce")).to_have_text(re.compile("was copied$"))
    assert f"layer={LAYER}" in page.evaluate("navigator.clipboard.readText()")
    page.get_by_text("The same elsewhere").click()
    page.get_by_role("button", name="Copy: HTTP").click()
    expect(page.locator("#announce")).to_have_text("HTTP was copied")
    tool, address = shlex.split(page.evaluate("navigator.clipboard.readText()"))
    assert tool == "curl"
    assert running.http.get(address).json()["variant"] == FAST


def test_a_table_is_kept_as_a_file(visitor: Visitor) -> None:
    page = visitor.open(f"/?device=fake-gpu&layer={LAYER}")
    with page.expect_download() as download:
        page.locator("#ranking").get_by_role("link", name="CSV").click()
    assert download.value.suggested_filename == f"ranking-{LAYER}-float32-nchw-fake-gpu.csv"
    assert FAST in Path(download.value.path()).read_text()


def test_a_layer_outside_the_domain_is_called_a_guess(visitor: Visitor) -> None:
    page = visitor.open("/?device=nvidia-h200&layer=14-1-13-1-1")
    expect(page.get_by_role("note")).to_contain_text("The model abstains")
    expect(page.get_by_role("note")).to_contain_text("filters is 1")
    visitor.open(f"/?device=nvidia-h200&layer={LAYER}")
    expect(page.get_by_role("note")).to_have_count(0)


def test_measuring_shows_its_progress_and_ends_with_a_ranking(visitor: Visitor) -> None:
    page = visitor.open(f"/?device=cpu&layer={MEASURED}")
    expect(page.get_by_role("heading", name="No advice yet")).to_be_visible()
    page.get_by_role("button", name="Measure").click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    expect(page.get_by_text(re.compile("Done: 8 of 8"))).to_be_visible()
    rows = page.locator("#measurement tbody tr")
    assert rows.count() == 8
    times = [row.locator("td").nth(1).inner_text() for row in rows.all()]
    assert all(re.search(r"\d (ns|µs|ms|s)$", found) for found in times), times
    expect(page.locator("#verdict h2")).to_contain_text("cpu.")
    expect(page.locator("#ranking")).to_contain_text("measured")


def test_a_long_measurement_is_cancelled(visitor: Visitor) -> None:
    page = visitor.open("/?device=nvidia-h200&layer=56-16-7-256-256")
    page.get_by_role("button", name="Measure").click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#measurement")).to_contain_text("Cancelled")
    page.get_by_role("link", name="Jobs").click()
    expect(page.locator("main")).to_contain_text("cancelled")


def test_the_map_is_drawn_and_read_by_keyboard_and_pointer(visitor: Visitor) -> None:
    page = opened_map(visitor, f"device=nvidia-h200&layer={LAYER}")
    cells = page.locator("#map g[aria-label=cell] rect")
    assert cells.count() > 500
    colours = cells.evaluate_all("cells => [...new Set(cells.map(cell => getComputedStyle(cell).fill))]")
    assert len(colours) == page.locator(".legend .swatch:not(.none)").count()
    page.locator("#map").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    said = page.locator("#map-cell").inner_text()
    assert re.fullmatch(r"16-2-3-256-128: \S+", said)
    box = page.locator("#map").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert page.locator("#map-cell").inner_text() != said
    page.locator("#map").focus()
    layer, variant = page.locator("#map-cell").inner_text().split(": ")
    page.keyboard.press("Enter")
    expect(page.locator("#verdict")).to_be_visible()
    is_announced(page, layer)
    page.go_back()
    page.get_by_label("Across").select_option("filters")
    expect(page.get_by_role("heading", name="Fastest over filters and batch")).to_be_visible()
    expect(page.locator("#map svg")).to_be_visible()
    assert page.locator("#map g[aria-label=cell] rect").count() > 500
    page.get_by_text("The map as a table").click()
    assert page.locator("table.cells td").count() > 500
    assert variant


def test_the_map_says_what_the_advice_says(visitor: Visitor, running: Server) -> None:
    page = opened_map(visitor, f"device=fake-gpu&layer={LAYER}")
    page.locator("#map").focus()
    page.keyboard.press("ArrowLeft")
    layer, variant = page.locator("#map-cell").inner_text().split(": ")
    assert running.http.get("/v1/advice", params={"layer": layer, "device": "fake-gpu"}).json()["variant"] == variant


def test_a_cell_of_a_strided_layer_leads_to_that_layer_within_the_same_limits(visitor: Visitor) -> None:
    strided = "28-1-3-64-64-stride2-groups2"
    page = opened_map(visitor, f"device=fake-gpu&layer={strided}&workspace_mib=4&deterministic=true&x=filters")
    page.locator("#map").focus()
    page.keyboard.press("ArrowRight")
    layer, variant = page.locator("#map-cell").inner_text().split(": ")
    assert layer == strided.replace("-64-64-", "-80-64-")
    page.keyboard.press("Enter")
    expect(page.locator("#verdict .name")).to_have_text(layer)
    is_announced(page, f"{layer}: {variant}")
    assert page.get_by_label(re.compile("Workspace")).input_value() == "4"
    assert page.get_by_label(re.compile("deterministic", re.IGNORECASE)).is_checked()


def test_models_are_rolled_back_and_promoted(visitor: Visitor, home: Path) -> None:
    before = Registry(home).active("fake-gpu").id
    page = visitor.open("/models")
    section = page.get_by_role("region", name="fake-gpu")
    section.get_by_role("button").first.click()
    expect(page.get_by_text(re.compile("answers now"))).to_be_visible()
    assert Registry(home).active("fake-gpu").id != before
    expect(page.get_by_role("region", name="fake-gpu").locator(".tree").first).to_contain_text("in use")
    page.get_by_role("region", name="fake-gpu").get_by_role("button").first.click()
    expect(page.get_by_text(f"Tree {before} answers now")).to_be_visible()
    assert Registry(home).active("fake-gpu").id == before


def test_a_retrain_that_fails_says_why(visitor: Visitor) -> None:
    page = visitor.open("/models")
    page.get_by_label("Device").select_option("fake-gpu")
    page.get_by_role("button", name="Retrain").click()
    expect(page.locator("#job")).to_contain_text("failed")
    expect(page.locator("#job")).to_contain_text("fake-gpu")


def test_a_retrain_shows_its_progress_and_its_tree(visitor: Visitor) -> None:
    page = visitor.open("/models")
    page.get_by_label("Device").select_option(SMALL_DEVICE.id)
    note(page, "#job progress")
    page.get_by_role("button", name="Retrain").click()
    expect(page.locator("#job")).to_contain_text("succeeded")
    assert was_there(page), "its progress"
    expect(page.get_by_role("region", name=SMALL_DEVICE.id)).to_contain_text("in use")


_LEAVE_ONE_OF_EACH_LOOK = """() => document.querySelectorAll("main tbody, main ol, main ul").forEach(list => {
    const seen = new Set();
    [...list.children].forEach((row, place) => {
        const parts = [row, ...row.querySelectorAll(":not(wbr)")];
        const look = [place % 2, ...parts.map(part => `${part.tagName} ${part.getAttribute("class")}`)].join();
        seen.has(look) ? row.remove() : seen.add(look);
    });
})"""


def violations(page: Page, *rules: str) -> list[str]:
    """What axe finds, by all of its rules or by some."""
    options: dict[str, Any] = {"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {})
    return [
        f"{violation['id']}: {[node['html'][:120] for node in violation['nodes'][:3]]}"
        for violation in Axe().run(page, options=options).response["violations"]
    ]


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_no_page_is_inaccessible(browser: Browser, running: Server, viewport: Any) -> None:
    """Rows that look alike are cut to the first two, since axe takes the square of a page's length. The dark changes
    colours only."""
    visitor = Visitor(browser, f"http://127.0.0.1:{running.port}", viewport=viewport, color_scheme="light")
    for path in PAGES:
        page = visitor.open(path)
        for summary in page.locator("main summary").all():
            summary.click()
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, f"{path} is wider than the window"
        page.evaluate(_LEAVE_ONE_OF_EACH_LOOK)
        assert violations(page) == [], path
        page.emulate_media(color_scheme="dark")
        assert violations(page, "color-contrast") == [], f"{path}, in the dark"
        page.emulate_media(color_scheme="light")
    visitor.check()
    visitor.close()


def test_a_measurement_is_accessible_while_it_runs_and_when_it_is_done(visitor: Visitor) -> None:
    page = visitor.open("/?device=nvidia-h200&layer=28-4-3-64-64")
    page.get_by_role("button", name="Measure").click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    for _ in range(2):
        assert Axe().run(page).response["violations"] == []
        expect(page.get_by_text(re.compile("Done:"))).to_be_visible()


_FOCUS = """() => {
    const at = document.activeElement, shown = at.type === "radio" ? at.nextElementSibling : at;
    const style = getComputedStyle(shown), box = shown.getBoundingClientRect();
    return {
        name: at.id || at.name || at.getAttribute("aria-label") || at.textContent.trim(),
        tag: at.tagName, outline: style.outlineStyle, width: parseFloat(style.outlineWidth),
        isSeen: box.width > 1 && box.height > 1 && box.right > 0, top: box.top + scrollY, left: box.left,
    };
}"""


def test_the_keyboard_reaches_everything_in_the_order_it_is_read(visitor: Visitor) -> None:
    page = visitor.open(f"/?device=nvidia-h200&layer={LAYER}&network=resnet50")
    reached: list[dict[str, Any]] = []
    while len(reached) < 120:
        page.keyboard.press("Tab")
        found = page.evaluate(_FOCUS)
        if found["tag"] == "BODY" or (reached and found["name"] == reached[0]["name"] and found["tag"] == "A"):
            break
        reached.append(found)
    names = [str(found["name"]) for found in reached]
    assert names[0] == "Skip to the content"
    wanted = ["conv-advisor", "Advice", "Map", "theme", "by", "layer", "dtype", "layout", "device", "Limits", "Advise"]
    wanted += ["ResNet-50", "which", "Measure", "API"]
    places = [next((place for place, name in enumerate(names) if name == want), -1) for want in wanted]
    assert -1 not in places, dict(zip(wanted, places, strict=True))
    assert places == sorted(places), "focus goes as one reads"
    for found in reached:
        assert found["isSeen"], f"{found['name']} has the focus and is not seen"
        assert found["outline"] != "none", f"{found['name']} does not show that it has the focus"
        assert found["width"] >= 2


def test_the_skip_link_skips(visitor: Visitor) -> None:
    page = visitor.open("/?device=nvidia-h200")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_the_theme_changes_and_stays(visitor: Visitor) -> None:
    page = visitor.open("/?device=nvidia-h200")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_role("button", name="Change between light and dark").click()
    dark = page.evaluate(background)
    assert dark != light
    page.reload()
    assert page.evaluate(background) == dark
    visitor.open("/models")
    assert page.evaluate(background) == dark


def test_a_finger_can_hit_everything_on_a_phone(on_phone: Visitor) -> None:
    page = on_phone.open("/?device=nvidia-h200")
    boxes = page.locator("main button, main input:visible, main select, main summary, nav a").evaluate_all(
        "elements => elements.map(element => {"
        " const box = (element.type === 'checkbox' ? element.closest('label') : element).getBoundingClientRect();"
        " return [element.name || element.textContent.trim(), box.width, box.height]; })"
    )
    assert len(boxes) > 20
    small = [box for box in boxes if box[2] and min(box[1], box[2]) < 24]
    assert small == []
    page.get_by_label("Layer", exact=True).fill("7-1-1-32-832")
    page.get_by_role("button", name="Advise").tap()
    expect(page.locator("#announce")).to_contain_text("7-1-1-32-832")


def test_nothing_is_cut_off_at_any_width(visitor: Visitor) -> None:
    for path in PAGES:
        page = visitor.open(path)
        for width in (320, 390, 768, 1024, 1920):
            page.set_viewport_size({"width": width, "height": 800})
            overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert overflow <= 0, f"{path} is {overflow} pixels wider than {width}"


def test_the_picture_in_the_documentation_is_of_this_page_and_small(
    browser: Browser, running: Server, tmp_path: Path
) -> None:
    visitor = Visitor(browser, f"http://127.0.0.1:{running.port}", viewport={"width": picture.WIDTH, "height": 900})
    made, kept = tmp_path / "page.png", Path("docs/page.png")
    picture.take(visitor, made)
    for path in (made, kept):
        assert path.stat().st_size < picture.MOST_BYTES
        with Image.open(path) as image:
            assert image.width == picture.WIDTH
    for part in ("#verdict", "#against", "#ranking", "#tradeoffs"):
        expect(visitor.page.locator(part)).to_be_in_viewport()
    visitor.check()
    visitor.close()


def test_without_scripts_it_advises_and_measures(browser: Browser, running: Server) -> None:
    visitor = Visitor(browser, f"http://127.0.0.1:{running.port}", java_script_enabled=False)
    page = visitor.page
    page.goto(f"{visitor.address}/?device=nvidia-h200")
    page.get_by_label("Layer", exact=True).fill("7-1-1-32-832")
    page.get_by_role("button", name="Advise").click()
    expect(page.locator("#verdict")).to_contain_text("nvidia-h200")
    assert "7-1-1-32-832" in page.title()
    page.get_by_label("Find a layer or a network").fill("resnet-50 conv4 3x3")
    page.get_by_label("Find a layer or a network").press("Enter")
    page.get_by_role("link", name="14-1-3-256-256").click()
    page.locator("#verdict").get_by_role("link", name="Compare").click()
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#compared-title")).to_be_visible()
    page.goto(f"{visitor.address}/?device=nvidia-h200&layer=7-1-1-32-832")
    page.get_by_role("button", name="Measure").click()
    expect(page.locator("#measurement")).to_contain_text("Done:")
    visitor.close()


def test_what_goes_wrong_on_the_way_leaves_the_page_usable(visitor: Visitor, running: Server) -> None:
    page = visitor.open("/?device=nvidia-h200")
    page.context.set_offline(True)
    page.get_by_role("button", name="Advise").click()
    expect(page.locator("#offline")).to_be_visible()
    page.context.set_offline(False)
    page.get_by_role("button", name="Advise").click()
    expect(page.locator("#offline")).to_be_hidden()
    expected = ("htmx:", "Failed to load resource: net::ERR_INTERNET_DISCONNECTED")
    visitor.faults = [fault for fault in visitor.faults if not fault.startswith(expected)]
