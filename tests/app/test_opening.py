"""An engine that is opened before it is asked for: once, and again by whoever asks after a failure."""

from __future__ import annotations

import pytest

from conv_advisor.app.settings import Settings
from conv_advisor.app.workers import opening
from conv_advisor.app.workers.engine import NO_DEVICE, Engine
from conv_advisor.data.errors import WorkerError


def test_the_engine_that_began_early_is_the_one_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Engine] = []

    def open_engine(settings: Settings) -> Engine:
        opened.append(Engine(NO_DEVICE, start_timeout_s=settings.start_timeout_s))
        return opened[-1]

    monkeypatch.setattr(opening, "open_engine", open_engine)
    early = opening.EarlyStart(Settings())
    first = early(Settings())
    assert opened == [first], "the first call opens nothing more"
    second = early(Settings())
    assert opened == [first, second]
    for engine in opened:
        engine.close()


def test_why_it_was_not_opened_is_said_once_and_then_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[Settings] = []

    def open_engine(settings: Settings) -> Engine:
        tries.append(settings)
        raise WorkerError(f"try {len(tries)}")

    monkeypatch.setattr(opening, "open_engine", open_engine)
    early = opening.EarlyStart(Settings())
    for expected in ("try 1", "try 2"):
        with pytest.raises(WorkerError, match=expected):
            early(Settings())
