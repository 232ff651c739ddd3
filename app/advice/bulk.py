"""Advice on a list of layers, many at a time; a layer without advice gives the reason in its place."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec
import numpy as np

from conv_advisor.app.advice.advise import advise, advise_best, answered_by, best_beside
from conv_advisor.app.advice.asked import AskedList
from conv_advisor.app.advice.limits import Limits
from conv_advisor.app.service.kept import Parts
from conv_advisor.app.service.service import Basis, Service
from conv_advisor.app.wire.answers.advice import advice_json
from conv_advisor.app.wire.errors import problem_of
from conv_advisor.app.wire.layers import Layer, Named, named, problems_from
from conv_advisor.data.errors import ConvAdvisorError, InvalidInput
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.advice.advice import Advice
from conv_advisor.models.advice.advisor import Advisor

Answer = TypeVar("Answer")

MAX_RANKINGS: Final = 1000
"""Most layers of one request with rankings, some 5 KB each, or with baselines, which take as long."""

_AT_ONCE: Final = 1000
"""Layers whose measurements are held in memory at a time."""


def advise_all(service: Service, request: AskedList) -> bytes:
    """Advice on a list of layers, as the JSON of a `BulkAdviceAnswer`; a layer without advice gives the reason.

    One tree answers the whole list.

    Raises
    ------
    InvalidInput, UnknownDevice, ModelRejected, StoreError
    """
    is_whole = request.common.ranking or request.common.baselines
    if is_whole and len(request.layers) > MAX_RANKINGS:
        allowed = f"at most {MAX_RANKINGS} with ranking or baselines"
        raise InvalidInput("layers", f"a list of {len(request.layers)}", allowed)
    limits, common = Limits.of(request.common, service), named(request.common.given())
    basis = service.basis(limits.device_id)
    oracle = _Oracle(service, basis.advisor, limits, common)
    if is_whole:
        parts = list(oracle.whole(request.layers, _ranked if request.common.ranking else _beside))
    else:
        parts = _remembered(request.layers, oracle.best, service.parts, ((limits, common), basis))
    head = msgspec.json.encode(answered_by(basis.advisor))
    entries = b",".join([b'{"index":%d,%b' % (index, part[1:]) for index, part in enumerate(parts)])
    return b'%b,"advice":[%b]}' % (head[:-1], entries)


@dataclass(frozen=True)
class _Oracle:
    """Answers layers one by one, each with its own JSON object."""

    service: Service
    advisor: Advisor
    limits: Limits
    common: Named

    def best(self, layers: Sequence[Layer]) -> Iterator[bytes]:
        """The best variant for each layer."""
        encode = msgspec.json.Encoder().encode
        for problems, sizes in self._read(layers):
            valid = [problem for problem in problems if isinstance(problem, ConvProblem)]
            answers = advise_best(self.service, self.advisor, valid, self.limits, sizes)
            for answer in _in_place(problems, answers):
                yield _error(answer) if isinstance(answer, ConvAdvisorError) else encode(answer)

    def whole(self, layers: Sequence[Layer], encode: Callable[[Advice], bytes]) -> Iterator[bytes]:
        """The advice on each layer, encoded by `encode`."""
        for problems, _ in self._read(layers):
            valid = [problem for problem in problems if isinstance(problem, ConvProblem)]
            for answer in _in_place(problems, advise(self.service, self.advisor, valid, self.limits)):
                yield _error(answer) if isinstance(answer, ConvAdvisorError) else encode(answer)

    def _read(self, layers: Sequence[Layer]) -> Iterator[tuple[list[ConvProblem | InvalidInput], np.ndarray]]:
        """The problem of each layer, or the error of one that is not valid; `_AT_ONCE` layers at a time."""
        starts = range(0, len(layers), _AT_ONCE)
        return (problems_from(layers[start : start + _AT_ONCE], self.common) for start in starts)


def _in_place(
    problems: Sequence[ConvProblem | InvalidInput], answers: Iterator[Answer | ConvAdvisorError]
) -> Iterator[Answer | ConvAdvisorError]:
    """The answers to the valid problems, with the errors of the others in their places."""
    if all(isinstance(problem, ConvProblem) for problem in problems):
        return answers
    return (next(answers) if isinstance(problem, ConvProblem) else problem for problem in problems)


def _remembered(
    layers: Sequence[Layer],
    answer: Callable[[Sequence[Layer]], Iterator[bytes]],
    parts: Parts,
    key: tuple[Hashable, Basis],
) -> list[bytes]:
    """The answer to each layer, computed only where it is not cached."""
    cache = parts.of(*key)
    encoded = list(map(cache.get, layers))
    missing = [index for index, answer_json in enumerate(encoded) if answer_json is None]
    for index, answer_json in zip(missing, answer([layers[index] for index in missing]), strict=True):
        encoded[index] = cache[layers[index]] = answer_json
    parts.hits += len(layers) - len(missing)
    parts.misses += len(missing)
    return [answer_json for answer_json in encoded if answer_json is not None]


def _ranked(advice: Advice) -> bytes:
    return b'{"layer":%b,%b' % (msgspec.json.encode(advice.asked.short), advice_json(advice)[1:])


def _beside(advice: Advice) -> bytes:
    return msgspec.json.encode(best_beside(advice))


def _error(error: ConvAdvisorError) -> bytes:
    return msgspec.json.encode({"error": problem_of(error)})
