"""Fits the constants of a kernel's model to the times of its cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from types import ModuleType
from typing import Any, Final

import numpy as np

from benchmarks.cuts.kernels import KERNELS
from benchmarks.cuts.regret import Timed
from conv_advisor.data.measurement import Device

SHARPNESS: Final = 3.0
"""How fast a cut counts less the further it is behind the best of its problem."""
ROUNDS: Final = 12
_LEAST: Final = 1e-3
"""A constant below this counts as 0: a constant of 0 may grow, and none becomes negative."""


def numbers_of(constants: Any, seen: set[int] | None = None) -> list[float]:
    """The floats of nested dataclasses, mappings and tuples, in order; an object that is there twice counts once."""
    seen = set() if seen is None else seen
    if isinstance(constants, float):
        return [constants]
    if id(constants) in seen:
        return []
    seen.add(id(constants))
    return [number for part in _parts(constants) for number in numbers_of(part, seen)]


def with_numbers(constants: Any, numbers: Iterator[float], by_id: dict[int, Any] | None = None) -> Any:
    """The constants with other floats in place of theirs."""
    by_id = {} if by_id is None else by_id
    if isinstance(constants, float):
        return next(numbers)
    if id(constants) not in by_id:
        parts = [with_numbers(part, numbers, by_id) for part in _parts(constants)]
        if _is_value(constants):
            changed = replace(constants, **dict(zip((field.name for field in fields(constants)), parts, strict=True)))
        elif isinstance(constants, Mapping):
            changed = dict(zip(constants, parts, strict=True))
        else:
            changed = tuple(parts) if isinstance(constants, tuple) else constants
        by_id[id(constants)] = changed
    return by_id[id(constants)]


def holders(module: ModuleType, part: Timed, device: Device) -> list[str]:
    """The names in a kernel's module of the constants on which the times that it expects depend."""
    before, names = part.expected_us(device), []
    for name, value in list(vars(module).items()):
        if name.isupper() and not isinstance(value, float) and (numbers := numbers_of(value)):
            with applied(module, {name: with_numbers(value, iter([2 * number + 1 for number in numbers]))}):
                if not np.allclose(part.expected_us(device), before):
                    names.append(name)
    return names


def refit(parts: Sequence[Timed], device: Device) -> dict[str, Any]:
    """Constants by their names, with which the kernel's model fits these times of cuts best.

    Parameters
    ----------
    parts : sequence of Timed
        Times of one kernel, in dtypes that share their constants.
    device : Device
    """
    from scipy.optimize import least_squares

    module = KERNELS[parts[0].kernel].constants
    names = holders(module, parts[0], device)
    constants = tuple(getattr(module, name) for name in names)
    start = np.array(numbers_of(constants))
    truth = np.log(np.concatenate([1e3 * part.times_ms for part in parts]))
    weight = np.concatenate([(part.times_ms / part.times_ms.min()) ** -SHARPNESS for part in parts])

    def off(numbers: np.ndarray) -> np.ndarray:
        changed = dict(zip(names, with_numbers(constants, iter(numbers.tolist())), strict=True))
        with applied(module, changed):
            expected = np.concatenate([part.expected_us(device) for part in parts])
        errors: np.ndarray = weight * (np.log(np.maximum(expected, 1e-6)) - truth)
        return errors

    is_used = _moves(off, start)
    current = start.copy()

    def off_of_used(numbers: np.ndarray) -> np.ndarray:
        current[is_used] = numbers
        return off(current)

    fitted = least_squares(
        off_of_used,
        np.maximum(start[is_used], _LEAST),
        bounds=(0, np.inf),
        x_scale=np.maximum(start[is_used], _LEAST),
        loss="soft_l1",
        f_scale=0.1,
        max_nfev=ROUNDS,
    )
    current[is_used] = [float(f"{number:.3g}") for number in fitted.x]
    return dict(zip(names, with_numbers(constants, iter(current.tolist())), strict=True))


def _moves(off: Callable[[np.ndarray], np.ndarray], start: np.ndarray) -> np.ndarray:
    """Whether a change of each number changes any error."""
    at_start = off(start)
    moved = []
    for place in range(len(start)):
        changed = start.copy()
        changed[place] = 1.5 * changed[place] + _LEAST
        moved.append(bool(np.any(off(changed) != at_start)))
    return np.array(moved)


def _is_value(constants: Any) -> bool:
    return is_dataclass(constants) and not isinstance(constants, type)


def _parts(constants: Any) -> list[Any]:
    if _is_value(constants):
        values = [(field.type, getattr(constants, field.name)) for field in fields(constants)]
        return [float(value) if kind == "float" else value for kind, value in values]
    if isinstance(constants, Mapping):
        return list(constants.values())
    return list(constants) if isinstance(constants, tuple) else []


@contextmanager
def applied(module: ModuleType, constants: Mapping[str, Any]) -> Iterator[None]:
    """A kernel's module with other constants for a while."""
    before = {name: getattr(module, name) for name in constants}
    try:
        for name, value in constants.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)
