"""Everything that can go wrong, as one tree; HTTP statuses are assigned elsewhere (app/wire/error_types.py).

ConvAdvisorError
├── InvalidInput            a field has a value that is not allowed
│   ├── InvalidProblem      the layer's parameters
│   ├── InvalidTensor       tensors that contradict the parameters, or cannot be read
│   └── InvalidLayerName    a malformed short form
├── Unknown                 a name that nothing here bears
│   ├── UnknownVariant
│   ├── UnknownDevice
│   ├── UnknownNetwork
│   ├── UnknownModel
│   └── UnknownJob
├── NotApplicable           the variant does not compute this problem; carries the reason
├── NoAdvice                nothing that is known applies under the given limits
├── NotInstalled            packages of an extra that is not installed
├── KeyReused               something else was asked for with the same idempotency key
├── RunError                one attempt to run a variant failed
│   ├── NotSupported        the library refuses this problem
│   ├── OutOfMemory         the device has too little memory free
│   ├── WorkspaceExceeded   the variant needs more workspace than the limit
│   ├── CompileFailed       a kernel does not build
│   └── LaunchFailed        the device's context is unusable; its process must end
├── WorkerError             the process that owns the device
│   ├── WorkerDied          it ended during the job
│   ├── DeadlineExceeded    it overran and was killed
│   └── QueueFull           too many jobs wait already
├── ModelError
│   ├── ModelRejected       a model file that fails its audit
│   └── NotEnoughData       too few measurements to train on
├── StoreError              the timing store cannot be read or written
├── Refused                 a server that was asked has answered with an error
└── Unreachable             a server that was asked has not answered in time
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any


class ConvAdvisorError(Exception):
    """Base of every error that this project raises on purpose."""


class InvalidInput(ConvAdvisorError):
    """A field has a value that is not allowed.

    Parameters
    ----------
    field : str
        The field's name, as the user wrote it.
    value : object
        The value that was given.
    allowed : str
        What is allowed, in words.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        shown = repr(value.value if isinstance(value, Enum) else value)
        self.field = field
        self.value = shown if len(shown) <= 120 else shown[:117] + "..."
        self.allowed = allowed
        super().__init__(field, value, allowed)

    def __str__(self) -> str:
        return f"{self.field} is {self.value}; allowed: {self.allowed}"


class InvalidProblem(InvalidInput):
    """The parameters describe no convolution."""


class InvalidTensor(InvalidInput):
    """Tensors that contradict the parameters, or that cannot be read."""


class InvalidLayerName(InvalidInput):
    """A short form that cannot be read."""


_MOST_NAMES = 12
"""Most existing names that an error lists: nobody reads more."""


class Unknown(ConvAdvisorError):
    """A name that nothing here bears.

    Parameters
    ----------
    name : str
        The name that was asked for.
    known : iterable of str
        The names that exist.
    why : str
        Why the name does not, where that is known.
    """

    kind = "name"

    def __init__(self, name: str, known: list[str] | tuple[str, ...] = (), why: str = "") -> None:
        self.name = name
        self.known = list(known)
        self.why = why
        super().__init__(name, self.known, why)

    def __str__(self) -> str:
        words = f"unknown {self.kind} {self.name!r}" + (f"; {self.why}" if self.why else "")
        words += f"; did you mean {near!r}?" if (near := self.nearest) else ";" if self.known else ""
        if not self.known:
            return words
        n_more = len(self.known) - _MOST_NAMES
        rest = f" and {n_more} more" if n_more > 0 else ""
        return f"{words} known: {', '.join(self.known[:_MOST_NAMES])}{rest}"

    @property
    def nearest(self) -> str | None:
        """The name that was probably meant; None where none is near."""
        from difflib import get_close_matches  # needed only after a mistake

        # A string longer than any name is no name, and comparing it would take long.
        matches = get_close_matches(self.name[:100].lower(), self.known, n=1, cutoff=0.7)
        return matches[0] if matches else None


class UnknownVariant(Unknown):
    """No variant has this id."""

    kind = "variant"


class UnknownDevice(Unknown):
    """No device has this id."""

    kind = "device"


class UnknownNetwork(Unknown):
    """No network has this name."""

    kind = "network"


class UnknownModel(Unknown):
    """No trained model has this id."""

    kind = "model"


class UnknownJob(Unknown):
    """No job has this id."""

    kind = "job"


class NotApplicable(ConvAdvisorError):
    """The variant does not compute this problem.

    Parameters
    ----------
    variant : str
        The variant's id.
    reason : str
        Why it does not apply.
    """

    def __init__(self, variant: str, reason: str) -> None:
        self.variant = variant
        self.reason = reason
        super().__init__(variant, reason)

    def __str__(self) -> str:
        return f"{self.variant} does not apply: {self.reason}"


class NoAdvice(ConvAdvisorError):
    """Nothing that is known applies under the given limits.

    Parameters
    ----------
    summary : str
    reasons : mapping of variant to str
        Why each variant is out.
    """

    def __init__(self, summary: str, reasons: Mapping[str, str] | None = None) -> None:
        self.summary, self.reasons = summary, dict(reasons or {})
        super().__init__(summary, self.reasons)

    def __str__(self) -> str:
        by_reason: dict[str, list[str]] = {}
        for variant, reason in self.reasons.items():
            by_reason.setdefault(reason, []).append(variant)
        exclusions = "; ".join(f"{', '.join(variants)}: {reason}" for reason, variants in by_reason.items())
        return self.summary + (f" ({exclusions})" if exclusions else "")


class NotInstalled(ConvAdvisorError):
    """What was asked for needs packages that the base installation leaves out.

    Parameters
    ----------
    extra : str
        The extra that brings them.
    package : str
        The first of them that is missing.
    """

    def __init__(self, extra: str, package: str) -> None:
        self.extra, self.package = extra, package
        super().__init__(extra, package)

    def __str__(self) -> str:
        return (
            f"{self.package} is not installed; the extra {self.extra} has it: pip install 'conv-advisor[{self.extra}]'"
        )


class KeyReused(ConvAdvisorError):
    """Something else was asked for with the same idempotency key.

    Parameters
    ----------
    key : str
    """

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(key)

    def __str__(self) -> str:
        return f"Idempotency-Key {self.key!r} came with another request before; allowed: the same request, or a new key"


class RunError(ConvAdvisorError):
    """One attempt to run a variant failed."""


class NotSupported(RunError):
    """The library refuses this problem."""


class OutOfMemory(RunError):
    """The device has too little memory free."""


class WorkspaceExceeded(RunError):
    """The variant needs more workspace than the limit.

    Parameters
    ----------
    needed_bytes, limit_bytes : int
    """

    def __init__(self, needed_bytes: int, limit_bytes: int) -> None:
        self.needed_bytes = needed_bytes
        self.limit_bytes = limit_bytes
        super().__init__(needed_bytes, limit_bytes)

    def __str__(self) -> str:
        return f"needs {self.needed_bytes} bytes of workspace, the limit is {self.limit_bytes}"


class CompileFailed(RunError):
    """A kernel does not build."""


class LaunchFailed(RunError):
    """The device's context or a library of it is unusable in this process, which must end."""


class WorkerError(ConvAdvisorError):
    """The process that owns a device failed."""


class WorkerDied(WorkerError):
    """The worker process ended during the job."""


class DeadlineExceeded(WorkerError):
    """The job overran its deadline, and its worker was killed."""


class QueueFull(WorkerError):
    """Too many jobs wait already."""


class ModelError(ConvAdvisorError):
    """A trained model cannot be used or made."""


class ModelRejected(ModelError):
    """A model file fails its audit."""


class NotEnoughData(ModelError):
    """Too few measurements to train on."""


class StoreError(ConvAdvisorError):
    """The timing store cannot be read or written."""


class Refused(ConvAdvisorError):
    """A server that was asked has answered with an error.

    Parameters
    ----------
    document : mapping of str to object
        The problem document (RFC 9457): type, title, status, detail, and what else is known of it.
    retry_after_s : float
        How long the server asks to be left alone; 0 where it does not say.
    """

    def __init__(self, document: Mapping[str, Any], retry_after_s: float = 0.0) -> None:
        self.document, self.retry_after_s = dict(document), retry_after_s
        super().__init__(self.document, retry_after_s)

    @property
    def status(self) -> int:
        """The HTTP status; 500 for a job that failed, which has none."""
        return int(self.document.get("status", 500))

    @property
    def type(self) -> str:
        """The kind of error, such as ``/problems/unknown-device``; it never changes."""
        return str(self.document.get("type", "about:blank"))

    @property
    def detail(self) -> str:
        """What has happened, in words."""
        return str(self.document.get("detail", ""))

    def __str__(self) -> str:
        title = self.document.get("title", f"HTTP {self.status}")
        return f"{title}: {self.detail}" if self.detail else str(title)


class Unreachable(ConvAdvisorError):
    """A server that was asked has not answered in time.

    Parameters
    ----------
    url : str
    reason : str
    """

    def __init__(self, url: str, reason: str) -> None:
        self.url, self.reason = url, reason
        super().__init__(url, reason)

    def __str__(self) -> str:
        return f"{self.url} does not answer: {self.reason}"
