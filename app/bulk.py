"""Advice on a list of layers: many at a time, and a layer that has none says why in its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from app.advice import Limits, advise
from app.answers import BestAnswer, BulkAdviceAnswer, advice_answer, best_answer
from app.errors import problem_of
from app.schemas import BulkAdviceRequest, LayerParameters, problem_from
from app.service import Service
from data.errors import ConvAdvisorError, InvalidInput
from data.problem import ConvProblem
from models.advisor import Advice

MAX_RANKINGS: Final = 1000
"""Layers of one request whose whole rankings are answered: some 5 KB each."""

_AT_ONCE: Final = 500
"""Layers whose measurements are held at a time."""


def advise_all(service: Service, asked: BulkAdviceRequest) -> BulkAdviceAnswer:
    """Advice on a list of layers; one that has none says why in its place.

    Raises
    ------
    InvalidInput, UnknownDevice, ModelRejected, StoreError
    """
    if asked.ranking and len(asked.layers) > MAX_RANKINGS:
        raise InvalidInput("layers", f"a list of {len(asked.layers)}", f"at most {MAX_RANKINGS} with ranking")
    limits = Limits.of(asked, service)
    problems = list(_problems(asked))
    answers: list[BestAnswer] = []
    for start in range(0, len(problems), _AT_ONCE):
        part = problems[start : start + _AT_ONCE]
        advised = iter(advise(service, [each for each in part if isinstance(each, ConvProblem)], limits))
        found = [next(advised) if isinstance(each, ConvProblem) else each for each in part]
        answers += [_answer(start + place, each, is_whole=asked.ranking) for place, each in enumerate(found)]
    model = service.advisor(limits.device_id).model
    return {"device": limits.device_id, "model": model.id if model else None, "advice": answers}


def _problems(asked: BulkAdviceRequest) -> Iterator[ConvProblem | ConvAdvisorError]:
    common = asked.given()
    for layer in asked.layers:
        own: dict[str, Any] = layer.given() if isinstance(layer, LayerParameters) else {"layer": layer}
        try:
            yield problem_from(common | own)
        except InvalidInput as error:
            yield error


def _answer(index: int, found: Advice | ConvAdvisorError, *, is_whole: bool) -> BestAnswer:
    if isinstance(found, ConvAdvisorError):
        return {"index": index, "error": problem_of(found)}
    if is_whole:
        return {**advice_answer(found), **best_answer(index, found)}  # type: ignore[typeddict-unknown-key]  # a whole answer has more keys
    return best_answer(index, found)
