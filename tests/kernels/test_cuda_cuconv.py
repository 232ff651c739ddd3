"""How cuConv is launched; no GPU is needed."""

from __future__ import annotations

from typing import Any

import pytest

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.cuconv import launch

H200 = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", capability="9.0", processors=132)


@pytest.mark.parametrize("filters", [16, 4, 1])
@pytest.mark.parametrize("c", [1, 33, 34, 35, 36])
def test_shared_memory_has_room_for_its_last_rows_read_as_vectors(
    c: int, filters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def kernel(_grid: Any, _block: Any, _arguments: Any, shared_mem: int) -> None:
        asked.append(shared_mem)

    monkeypatch.setattr(launch, "load_kernel", lambda *_, **__: kernel)
    prepared = launch.prepare(ConvProblem.parse(f"9-2-1-19-{c}"), H200, 2**20, filters=filters)
    prepared.run(None, None, None)
    (shared_bytes,) = asked
    assert shared_bytes % 16 == 0
    assert 0 <= shared_bytes - 4 * filters * c < 16
