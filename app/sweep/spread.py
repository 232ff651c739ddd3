"""Chooses the fleet for a sweep's workers."""

from __future__ import annotations

from collections.abc import Sequence

from conv_advisor.app.sweep.cluster_fleet import ClusterFleet
from conv_advisor.app.sweep.fleet import Devices, Fleet
from conv_advisor.app.workers.any_engine import AnyEngine
from conv_advisor.app.workers.cluster.engine import ClusterEngine
from conv_advisor.app.workers.engine import Engine


def fleet_of(workers: AnyEngine | Sequence[AnyEngine]) -> Fleet:
    """The fleet of these workers: one cluster, or devices of this host."""
    engines = list(workers) if isinstance(workers, Sequence) else [workers]
    if len(engines) == 1 and isinstance(engines[0], ClusterEngine):
        return ClusterFleet(engines[0])
    return Devices([engine for engine in engines if isinstance(engine, Engine)])
