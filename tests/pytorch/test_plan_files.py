"""Choices on disk: what is kept, what is still believed, and files that are not ours."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import Layout
from conv_advisor.kernels.sources import sources_digest
from conv_advisor.torch.choosing.choice import Choice
from conv_advisor.torch.choosing.plans import VERSION, Basis, PlanFile, basis_of, default_path

BASIS = Basis("NVIDIA H200, driver 580", "9.19.0", "01234567", "2.11.0")
OURS = Choice("cuda.implicit_gemm", {}, 0.01, 0.02, 3e-7, 2e-7)
CUDNN = Choice("cudnn.graph.eng62", {"engine": 62, "knobs": {"2": 0}}, 0.01, 0.02, 3e-7, 2e-7)
PYTORCHS = Choice(None, {}, 0.01, 0.01, 2e-7, 2e-7, "it is as fast")
KEPT = {"a": OURS, "b": CUDNN, "c": PYTORCHS}


def test_the_next_process_finds_what_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "plans.json"
    PlanFile(path, BASIS).add(KEPT)
    again = PlanFile(path, BASIS)
    assert {name: again.get(name) for name in KEPT} == KEPT
    assert again.get("d") is None
    assert [entry.name for entry in path.parent.iterdir()] == ["plans.json"]


def test_failures_and_predictions_are_not_kept(tmp_path: Path) -> None:
    failed = Choice(None, {}, None, 0.02, None, 2e-7, "the first variants fail")
    plans = PlanFile(tmp_path / "plans.json", BASIS)
    plans.add({"failed": failed, "unmeasured": replace(OURS, is_measured=False), "a": OURS})
    assert set(json.loads((tmp_path / "plans.json").read_text())["choices"]) == {"a"}


def test_a_failure_that_an_older_version_kept_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    PlanFile(path, BASIS).add({"a": PYTORCHS})
    content = json.loads(path.read_text())
    content["choices"]["a"] |= {"time_ms": None, "reason": "the first variants fail"}
    path.write_text(json.dumps(content))
    assert PlanFile(path, BASIS).get("a") is None


@pytest.mark.parametrize(
    ("change", "believed"),
    [
        ({"device": "NVIDIA H100, driver 580"}, set()),
        ({"cudnn": "9.20.0"}, {"a"}),
        ({"kernels": "fedcba98"}, {"b"}),
        ({"torch": "2.13.0"}, set()),
    ],
)
def test_only_what_moved_is_measured_again(change: dict[str, str], believed: set[str], tmp_path: Path) -> None:
    PlanFile(tmp_path / "plans.json", BASIS).add(KEPT)
    later = PlanFile(tmp_path / "plans.json", replace(BASIS, **change))
    assert {name for name in KEPT if later.get(name)} == believed


def test_two_processes_add_to_one_file(tmp_path: Path) -> None:
    first, second = (PlanFile(tmp_path / "plans.json", BASIS) for _ in range(2))
    first.add({"a": OURS})
    second.add({"b": CUDNN})
    assert set(json.loads((tmp_path / "plans.json").read_text())["choices"]) == {"a", "b"}


def test_what_a_process_read_when_it_began_does_not_replace_what_others_wrote_since(tmp_path: Path) -> None:
    path, newer = tmp_path / "plans.json", replace(BASIS, torch="2.13.0")
    PlanFile(path, BASIS).add({"a": OURS, "b": CUDNN})
    PlanFile(path, BASIS).add_layouts("network", (Layout.NCHW,))
    long_lived = PlanFile(path, BASIS)
    other = PlanFile(path, newer)
    other.add({"a": PYTORCHS})
    other.add_layouts("network", (Layout.NHWC,))
    long_lived.add({"c": PYTORCHS})
    again = PlanFile(path, newer)
    assert (again.get("a"), again.get_layouts("network")) == (PYTORCHS, (Layout.NHWC,))
    assert PlanFile(path, BASIS).get("c") == PYTORCHS
    assert (long_lived.get("a"), long_lived.get_layouts("network")) == (OURS, (Layout.NCHW,)), "it goes by what it has"


def test_what_was_written_once_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    first, second = (PlanFile(path, BASIS) for _ in range(2))
    first.add({"a": OURS})
    second.add({"a": PYTORCHS})
    first.add({"b": CUDNN})
    assert PlanFile(path, BASIS).get("a") == PYTORCHS


def test_what_could_not_be_written_is_written_with_what_follows(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "plans.json"
    plans = PlanFile(path, BASIS)
    path.parent.write_text("a file, for now")
    plans.add({"a": OURS})
    path.parent.unlink()
    plans.add({"b": CUDNN})
    assert set(json.loads(path.read_text())["choices"]) == {"a", "b"}


def test_a_process_learns_what_others_measured_in_the_place_of_what_is_out_of_date(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    PlanFile(path, replace(BASIS, torch="2.10.0")).add({"a": OURS})
    long_lived = PlanFile(path, BASIS)
    PlanFile(path, BASIS).add({"a": PYTORCHS})
    long_lived.add({"b": CUDNN})
    assert long_lived.get("a") == PYTORCHS


def test_where_nothing_can_be_written_choices_live_as_long_as_the_process(tmp_path: Path) -> None:
    plans = PlanFile(tmp_path / "folder" / "plans.json", BASIS)
    (tmp_path / "folder").write_text("a file, now")
    plans.add({"a": OURS})
    assert plans.get("a") == OURS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "plan_file is"),
        ("[]", "plan_file.version is None"),
        ('{"version": 1, "choices": {}}', "plan_file.version is 1"),
        ('{"version": 2, "choices": []}', "plan_file.choices"),
        ('{"version": 2, "choices": {"a": {"variant": 3}}}', "plan_file.choices"),
        ('{"version": 2, "choices": {"a": {"variant": null, "plan": {}, "basis": ""}}}', "plan_file.choices"),
    ],
)
def test_a_file_that_is_not_ours_is_refused_by_name(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "plans.json").write_text(text)
    with pytest.raises(InvalidInput, match=said):
        PlanFile(tmp_path / "plans.json", BASIS)


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 1, "choices": {}}', '{"version": 2, "choices": []}'])
def test_a_file_that_bears_our_name_and_is_unsound_is_begun_anew(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    path.write_text(text)
    plans = PlanFile(path, BASIS, is_ours=True)
    assert path.read_text() == text, "it stays until there is something to keep"
    plans.add({"a": OURS})
    assert PlanFile(path, BASIS).get("a") == OURS


def test_a_folder_in_the_place_of_our_file_is_no_reason_not_to_run(tmp_path: Path) -> None:
    plans = PlanFile(tmp_path, BASIS, is_ours=True)
    plans.add({"a": OURS})
    assert plans.get("a") == OURS


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CONV_ADVISOR_PLANS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_path("nvidia-h200") == tmp_path / "conv-advisor" / "plans" / f"nvidia-h200-v{VERSION}.json"
    monkeypatch.setenv("CONV_ADVISOR_PLANS", str(tmp_path / "mine"))
    assert default_path("nvidia-h200") == tmp_path / "mine" / f"nvidia-h200-v{VERSION}.json"


def test_the_basis_is_of_the_device_and_our_sources() -> None:
    versions: dict[str, Any] = {"driver": "580", "cudnn": "9.19.0"}
    basis = basis_of(Device("nvidia-h200", "NVIDIA H200", "cuda", versions=versions), "2.11.0")
    assert basis.device == "NVIDIA H200, driver 580"
    assert (basis.kernels, basis.torch) == (sources_digest(), "2.11.0")
    assert basis.cudnn == f"9.19.0 by {sources_digest('cudnn')}", "of what decides where its engines may run, too"


def test_layouts_are_kept_beside_choices_until_anything_that_they_hang_on_changes(tmp_path: Path) -> None:
    path, layouts = tmp_path / "plans.json", (Layout.NHWC, Layout.NCHW)
    plans = PlanFile(path, BASIS)
    plans.add({"a": OURS})
    plans.add_layouts("network", layouts)
    again = PlanFile(path, BASIS)
    assert (again.get("a"), again.get_layouts("network"), again.get_layouts("other")) == (OURS, layouts, None)
    for move in ({"kernels": "fedcba98"}, {"cudnn": "9.20.0"}, {"torch": "2.13.0"}, {"device": "NVIDIA H100"}):
        assert PlanFile(path, replace(BASIS, **move)).get_layouts("network") is None


def test_a_file_of_before_there_were_layouts_is_read(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    PlanFile(path, BASIS).add({"a": OURS})
    content = json.loads(path.read_text())
    del content["layouts"]
    path.write_text(json.dumps(content))
    assert PlanFile(path, BASIS).get("a") == OURS


@pytest.mark.parametrize(
    "layouts", [[], {"n": None}, {"n": {"basis": "b"}}, {"n": {"basis": "b", "layouts": ["nwhc"]}}]
)
def test_layouts_that_are_none_are_refused(layouts: Any, tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    path.write_text(json.dumps({"version": 2, "choices": {}, "layouts": layouts}))
    with pytest.raises(InvalidInput, match=r"plan_file\.layouts"):
        PlanFile(path, BASIS)
