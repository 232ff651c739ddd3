"""Graphs of a launch whose kernels are timed one by one: none of them outlives it, whatever happens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")

from conv_advisor.kernels.cuda import stages
from conv_advisor.kernels.variant import Launch


def test_a_replay_that_fails_leaves_no_graph_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[str] = []
    driver = SimpleNamespace(
        CUresult=SimpleNamespace(CUDA_SUCCESS=0),
        cuGraphInstantiate=lambda graph, _: (0, f"executable of {graph}"),
        cuGraphNodeSetEnabled=lambda *_: (0,),
        cuGraphExecDestroy=lambda graph: (gone.append(graph), (0,))[1],
        cuGraphDestroy=lambda graph: (gone.append(graph), (0,))[1],
    )

    def fail(*_: Any) -> float:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(stages, "driver", driver)
    monkeypatch.setattr(stages, "_captured", lambda *_: "graph")
    monkeypatch.setattr(stages, "_in_order", lambda _: ["node"])
    monkeypatch.setattr(stages, "_replayed_ms", fail)
    monkeypatch.setattr(stages.cupy.cuda, "Stream", lambda **_: Stream())
    with pytest.raises(RuntimeError, match="on purpose"):
        stages.stages(Launch(lambda *_: None), SimpleNamespace(), 1.0)  # type: ignore[arg-type]  # nobody looks at them
    assert gone == ["executable of graph", "graph"]


class Stream:
    """A stream on which nothing runs."""

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        return
