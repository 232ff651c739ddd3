"""The kinds of error over HTTP, as one literal table: type, title, status, and what it means.

They are written out, and not made from class names or from the standard library's phrases for statuses, because clients
compare them: Python 3.13 renamed three phrases.
"""

from __future__ import annotations

from dataclasses import dataclass
from http.client import responses
from typing import Final

from conv_advisor.data import errors as e

PATH: Final = "/problems"


@dataclass(frozen=True, slots=True)
class ErrorType:
    """One kind of error.

    Parameters
    ----------
    name : str
        The last part of its address; never changed, since clients compare it.
    title : str
        The same for every error of this kind.
    status : int
        The HTTP status.
    meaning : str
        What has happened, and what to do.
    """

    name: str
    title: str
    status: int
    meaning: str

    @property
    def address(self) -> str:
        """The ``type`` of a problem document; it can be opened."""
        return self.name if ":" in self.name else f"{PATH}/{self.name}"


_AGAIN: Final = "The same request may succeed after the time in Retry-After."
_OURS: Final = "The fault is this service's; the detail says more, and so does its log."

OF_ERROR: Final[dict[type[e.ConvAdvisorError], ErrorType]] = {
    e.ConvAdvisorError: ErrorType("conv-advisor-error", "Conv advisor error", 500, _OURS),
    e.InvalidInput: ErrorType(
        "invalid-input", "Invalid input", 400, "A field has a value that is not allowed: see field, value and allowed."
    ),
    e.InvalidProblem: ErrorType(
        "invalid-problem",
        "Invalid problem",
        400,
        "The parameters describe no convolution: see field, value and allowed.",
    ),
    e.InvalidTensor: ErrorType(
        "invalid-tensor",
        "Invalid tensor",
        400,
        "The tensors contradict the parameters or each other, or cannot be read: see field, value and allowed.",
    ),
    e.InvalidLayerName: ErrorType(
        "invalid-layer-name",
        "Invalid layer name",
        400,
        "A layer's short form cannot be read; it is written size-batch-filter-filters-depth, such as 14-1-3-256-128.",
    ),
    e.Unknown: ErrorType("unknown", "Unknown", 404, "Nothing has this name: see known."),
    e.UnknownVariant: ErrorType(
        "unknown-variant", "Unknown variant", 404, "No variant has this id; /v1/variants lists them."
    ),
    e.UnknownDevice: ErrorType(
        "unknown-device",
        "Unknown device",
        404,
        "No device has this id, or none with measurements or a model; /v1/devices lists them.",
    ),
    e.UnknownNetwork: ErrorType(
        "unknown-network", "Unknown network", 404, "No network has this name; /v1/networks lists them."
    ),
    e.UnknownModel: ErrorType("unknown-model", "Unknown model", 404, "No model has this id; /v1/models lists them."),
    e.UnknownJob: ErrorType("unknown-job", "Unknown job", 404, "No job has this id, or it is no longer kept."),
    e.NotApplicable: ErrorType(
        "not-applicable", "Not applicable", 409, "The variant does not compute this layer: see variant and reason."
    ),
    e.NoAdvice: ErrorType(
        "no-advice",
        "No advice",
        409,
        "No variant is known to compute this layer within the limits; excluded says why each is out.",
    ),
    e.KeyReused: ErrorType(
        "key-reused", "Key reused", 409, "The Idempotency-Key came with another request before; take a new key."
    ),
    e.NotInstalled: ErrorType(
        "not-installed",
        "Not installed",
        501,
        "This installation lacks the packages that the request needs; the detail names the extra that brings them.",
    ),
    e.RunError: ErrorType("run-error", "Run error", 500, "A variant failed while it ran. " + _OURS),
    e.NotSupported: ErrorType(
        "not-supported", "Not supported", 409, "The library refuses this layer; take another variant."
    ),
    e.OutOfMemory: ErrorType(
        "out-of-memory",
        "Out of memory",
        507,
        "The device has too little memory free; take a smaller batch, or a variant with less workspace.",
    ),
    e.WorkspaceExceeded: ErrorType(
        "workspace-exceeded",
        "Workspace exceeded",
        409,
        "The variant needs more workspace than the limit; raise the limit or take another variant.",
    ),
    e.CompileFailed: ErrorType("compile-failed", "Compile failed", 500, "A kernel does not build. " + _OURS),
    e.LaunchFailed: ErrorType(
        "launch-failed",
        "Launch failed",
        503,
        "The device's context was lost, and its worker is started anew. " + _AGAIN,
    ),
    e.WorkerError: ErrorType(
        "worker-error", "Worker error", 503, "The process that owns the device cannot take the work. " + _AGAIN
    ),
    e.WorkerDied: ErrorType(
        "worker-died", "Worker died", 503, "The process that owns the device ended, and is started anew. " + _AGAIN
    ),
    e.DeadlineExceeded: ErrorType(
        "deadline-exceeded", "Deadline exceeded", 504, "The work took longer than it may, and was stopped."
    ),
    e.QueueFull: ErrorType("queue-full", "Queue full", 503, "Too many wait for the device already. " + _AGAIN),
    e.ModelError: ErrorType(
        "model-error", "Model error", 409, "The model cannot be used or made; the detail says why."
    ),
    e.ModelRejected: ErrorType(
        "model-rejected", "Model rejected", 409, "The model's file fails its audit, and is not used."
    ),
    e.NotEnoughData: ErrorType(
        "not-enough-data", "Not enough data", 409, "Too few layers are measured to train on; measure more."
    ),
    e.StoreError: ErrorType("store-error", "Store error", 503, "The database cannot be read or written. " + _AGAIN),
    e.Refused: ErrorType(
        "refused", "Refused", 502, "Another server was asked, and has answered with an error: the detail has it."
    ),
    e.Unreachable: ErrorType(
        "unreachable", "Unreachable", 504, "Another server was asked, and has not answered in time."
    ),
}
"""What each class in `data.errors` is to a client. An unknown name in a parameter is 404 wherever it stands;
422 is left to payloads that cannot be read."""

OF_STATUS: Final[dict[int, ErrorType]] = {
    kind.status: kind
    for kind in (
        ErrorType("bad-request", "Bad Request", 400, "The request's headers or its form are not as HTTP has them."),
        ErrorType(
            "unauthorized",
            "Unauthorized",
            401,
            "The service asks for a token here: send it as Authorization: Bearer, or sign in at /sign-in.",
        ),
        ErrorType(
            "forbidden",
            "Forbidden",
            403,
            "The token lacks the scope that this needs, or the request comes from another site's page.",
        ),
        ErrorType("not-found", "Not Found", 404, "Nothing is at this address; /docs lists what there is."),
        ErrorType("method-not-allowed", "Method Not Allowed", 405, "The address takes other methods: see Allow."),
        ErrorType(
            "not-acceptable",
            "Not Acceptable",
            406,
            "None of the forms that Accept asks for can be made; the detail lists them.",
        ),
        ErrorType("request-timeout", "Request Timeout", 408, "The request did not arrive completely within its time."),
        ErrorType("request-entity-too-large", "Request Entity Too Large", 413, "The body is longer than allowed."),
        ErrorType(
            "unsupported-media-type",
            "Unsupported Media Type",
            415,
            "The body has another Content-Type or Content-Encoding than the address takes; the detail lists them.",
        ),
        ErrorType(
            "misdirected-request", "Misdirected Request", 421, "The Host header names another host than this service."
        ),
        ErrorType(
            "unprocessable-entity", "Unprocessable Entity", 422, "The payload cannot be read: errors names each field."
        ),
        ErrorType("too-many-requests", "Too Many Requests", 429, "The rate is used up; come again after Retry-After."),
        ErrorType(
            "request-header-fields-too-large",
            "Request Header Fields Too Large",
            431,
            "The request's headers are longer than allowed.",
        ),
        ErrorType("internal-server-error", "Internal Server Error", 500, "An error that nobody foresaw. " + _OURS),
        ErrorType(
            "not-implemented",
            "Not Implemented",
            501,
            "The request is sent in a way that the service does not read: the detail says in which it does.",
        ),
        ErrorType("service-unavailable", "Service Unavailable", 503, "The service is not ready. " + _AGAIN),
    )
}
"""What HTTP itself refuses, by status."""

ALL: Final = {kind.name: kind for kind in (*OF_ERROR.values(), *OF_STATUS.values())}


def type_of(error: e.ConvAdvisorError) -> ErrorType:
    """The kind of an error: that of its class, or of the nearest class above it."""
    return next(OF_ERROR[kind] for kind in type(error).__mro__ if kind in OF_ERROR)


def type_of_status(status: int) -> ErrorType:
    """The kind of a refusal by HTTP itself; of a status that is none of ours, RFC 9457's ``about:blank``."""
    return OF_STATUS.get(status) or ErrorType("about:blank", responses.get(status, "Error"), status, "")


def titles_of(status: int) -> str:
    """The titles of all kinds that have this status, in one line."""
    return ", ".join(kind.title for kind in ALL.values() if kind.status == status)
