"""The work of each kind of job, and its effect as the job ends."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from conv_advisor.app.jobs.job import JobKind
from conv_advisor.app.jobs.requests import bench_options, problem_deadline_s, problems_of
from conv_advisor.app.jobs.runner import Done, Held, Work
from conv_advisor.app.settings import Settings
from conv_advisor.app.sweep.calibrate import calibrate, lender_of
from conv_advisor.app.sweep.refresh import refresh
from conv_advisor.app.sweep.sweep import sweep
from conv_advisor.app.workers import tasks
from conv_advisor.app.workers.any_engine import AnyEngine
from conv_advisor.app.workers.engine import Engine
from conv_advisor.data.counting import counted
from conv_advisor.data.errors import NotEnoughData
from conv_advisor.data.measurement import Device
from conv_advisor.data.store import Store
from conv_advisor.kernels import catalog
from conv_advisor.kernels.bench import BenchOptions
from conv_advisor.models.registry.on_disk import Registry
from conv_advisor.models.registry.shared import SharedModels
from conv_advisor.models.retraining.retrain import Trained

_MOST_NAMED: Final = 1_000
"""Most regressed layers that a job's result names: those with the largest slowdown."""


def training(engine: Engine, models: SharedModels, settings: Settings) -> Work:
    """Train in a worker; the transaction that marks the job as succeeded stores the tree and puts it in charge."""
    train = partial(tasks.train, settings.store_url, settings.models_home)

    def work(held: Held) -> Done:
        trained: Trained = held.run(engine, train, held.job.request, deadline_s=settings.job_deadline_s)
        keep = partial(models.keep, model=trained.model, in_charge=trained.is_promoted)
        return Done(trained.result, keep)

    return work


def measuring(engine: AnyEngine, device: Device, store: Store, settings: Settings) -> Work:
    """Measure problems on the server's own device; each row joins the store at once, while the job is still held.

    A job that overruns its deadline fails but keeps its measurements: another job with its run_id continues.
    """

    def work(held: Held) -> Done:
        kind, order = held.job.kind, held.job.request
        problems = problems_of(kind, order)
        variants = order["variants"] or [variant.id for variant in catalog.for_device_kind(device.kind)]
        what_stays = f"what it has measured is kept, and a job with the run_id {order['run_id']} goes on"
        with held.within(settings.job_deadline_s, what_stays):
            sweep(
                store.guarded(held.guard),
                engine,
                problems,
                variants,
                options=bench_options(kind, order, settings.workspace_limit_bytes),
                run_id=order["run_id"],
                deadline_s=problem_deadline_s(kind, len(variants)),
                on_progress=partial(_tell, held),
                stopping=held.stopping,
            )
        return Done(_result(kind, order, device, store, len(problems)))

    return work


def calibrating(
    engine: AnyEngine, device: Device, store: Store, models: SharedModels, registry: Registry, settings: Settings
) -> Work:
    """Adapt the tree that the server's own device borrows; it is stored as a trained tree is.

    A resumed job gets its full minutes again, and measures nothing twice.
    """

    def work(held: Held) -> Done:
        order = held.job.request
        with held.within(settings.job_deadline_s, "what it has measured is kept, and another such job goes on"):
            adapted = calibrate(
                store.guarded(held.guard),
                engine,
                device,
                lender_of(device, registry),
                limit_s=60 * order["minutes"],
                seed=order["seed"],
                options=BenchOptions(workspace_limit_bytes=settings.workspace_limit_bytes, seed=order["seed"]),
                on_progress=held.note,
                guard=held.check,
            )
        if adapted.found is None:
            raise NotEnoughData(f"{adapted.ended}: {adapted.missing}" if adapted.ended else adapted.missing)
        result = adapted.to_dict(is_forced=order["force"])
        return Done(result, partial(models.keep, model=adapted.found.model, in_charge=result["promoted"]))

    return work


def refreshing(
    engine: AnyEngine,
    device: Device,
    trainer: Engine,
    store: Store,
    models: SharedModels,
    registry: Registry,
    settings: Settings,
) -> Work:
    """Measure again some known times of the server's own device; a repaired tree is stored as any other is.

    The prediction of the rest runs in the trainer, as everything that loads scikit-learn.
    """

    def work(held: Held) -> Done:
        order = held.job.request
        with held.within(settings.job_deadline_s, "what it has measured is kept, and another such job goes on"):
            refreshed = refresh(
                store.guarded(held.guard),
                engine,
                device,
                registry,
                limit_s=60 * order["minutes"],
                share=order["share"],
                seed=order["seed"],
                options=BenchOptions(workspace_limit_bytes=settings.workspace_limit_bytes, seed=order["seed"]),
                asked=partial(held.run, trainer, tasks.say_moves, deadline_s=settings.job_deadline_s),
                on_progress=held.note,
                guard=held.check,
            )
        if refreshed.found is None:
            raise NotEnoughData(f"{refreshed.ended}: {refreshed.missing}" if refreshed.ended else refreshed.missing)
        result = refreshed.to_dict(is_forced=order["force"], most=_MOST_NAMED)
        if refreshed.model is None:
            return Done(result)
        return Done(result, partial(models.keep, model=refreshed.model, in_charge=result["promoted"]))

    return work


def _tell(held: Held, done: int, total: int, doing: str) -> None:
    held.check()
    held.note(done / max(total, 1), f"{done} of {counted(total, 'problem')}: {doing}")


def _result(kind: JobKind, order: dict[str, Any], device: Device, store: Store, n_problems: int) -> dict[str, Any]:
    """The results of the whole run, over all attempts of the job."""
    outcomes = store.outcomes(order["run_id"])
    result: dict[str, Any] = {"run_id": order["run_id"], "device": device.id, "problems": n_problems}
    result |= {"attempts": sum(outcomes.values()), "outcomes": outcomes}
    if kind is JobKind.MEASURE:
        fastest = store.fastest(order["run_id"])
        result["fastest"] = [
            {"problem": key, "variant": variant, "time_ms": time_ms} for key, (variant, time_ms) in fastest.items()
        ]
    return result
