"""The trained trees of all processes on one database, which says which tree is in charge; each process keeps copies."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, Table, select
from sqlalchemy.exc import SQLAlchemyError

from conv_advisor.data.database.tables import ACTIVE_MODELS, MODELS
from conv_advisor.data.errors import ConvAdvisorError, ModelRejected, StoreError
from conv_advisor.models.registry.on_disk import Registry
from conv_advisor.models.tree.file import TreeModel, decode, encode

log = logging.getLogger(__name__)


class SharedModels:
    """The trees of a database, and their copies in one registry.

    Parameters
    ----------
    registry : Registry
        Where this process reads trees; processes of one host may share its home.
    engine : sqlalchemy.Engine
        The engine of the database.

    Notes
    -----
    A process that puts a tree in charge first says so in the database, with the next number of the device; the tree is
    there before or with it. `follow` copies what is missing, audited like any file, and moves the registry's pointer
    to a higher number, never to a lower one. So a process that is killed in between is behind, not wrong.
    """

    def __init__(self, registry: Registry, engine: Engine) -> None:
        self._registry = registry
        self._engine = engine
        self._known: set[tuple[str, str]] = set()
        self._refused: dict[str, int] = {}
        self._lock = threading.Lock()

    def join(self) -> None:
        """Give the database the trees that only this home has, from before there was a database; then follow it.

        Raises
        ------
        StoreError
        """
        self._known = self._registry.trained()
        with self._begin() as connection:
            shared = {(row[0], row[1]) for row in connection.execute(select(MODELS.c.device_id, MODELS.c.model_id))}
            decided = set(connection.execute(select(ACTIVE_MODELS.c.device_id)).scalars())
        for device_id, model_id in sorted(self._known - shared):
            self._offer(device_id, model_id)
        for device_id in sorted({device_id for device_id, _ in self._known} - decided):
            self._offer(device_id, None)
        self._follow(lambda mine, shared: mine != shared)

    def follow(self) -> None:
        """Bring the registry up to the database; a tree that fails its audit is left out, with a warning.

        Raises
        ------
        StoreError
        """
        # Of two processes with one home, one may read the database before, and the home after, the other changes both.
        self._follow(lambda mine, shared: mine < shared)

    def _follow(self, is_behind: Callable[[int, int], bool]) -> None:
        with self._lock:  # or one thread would point to a tree that another is still copying
            with self._begin() as connection:
                pointers = connection.execute(select(ACTIVE_MODELS)).all()
                keys = connection.execute(select(MODELS.c.device_id, MODELS.c.model_id)).all()
            for device_id, model_id in sorted({(row[0], row[1]) for row in keys} - self._known):
                self._copy(device_id, model_id)
            for device_id, model_id, activation in pointers:
                is_refused = self._refused.get(device_id) == activation
                if is_behind(self._registry.activation(device_id), activation) and not is_refused:
                    self._point(device_id, model_id, activation)

    def keep(self, connection: Connection, model: TreeModel, *, in_charge: bool) -> None:
        """Put a tree into the database, in the caller's transaction, and in charge if asked."""
        card, content = encode(model)
        values = {"device_id": model.device.id, "model_id": model.id, "card": card, "tree": content}
        connection.execute(_insert(connection, MODELS).values(**values).on_conflict_do_nothing())
        if in_charge:
            _put_in_charge(connection, model.device.id, model.id)

    def activate(self, device_id: str, model_id: str) -> TreeModel:
        """Put one of a device's trees in charge, here at once and in other processes when they follow.

        Raises
        ------
        UnknownDevice, UnknownModel, ModelRejected, StoreError
        """
        self.follow()
        model = self._registry.get(device_id, model_id)
        with self._begin() as connection:
            self.keep(connection, model, in_charge=True)
        self.follow()
        return model

    def add(self, model: TreeModel, *, in_charge: bool) -> None:
        """Keep a tree, and put it in charge if asked.

        Raises
        ------
        StoreError
        """
        with self._begin() as connection:
            self.keep(connection, model, in_charge=in_charge)
        self.follow()

    def _offer(self, device_id: str, model_id: str | None) -> None:
        """Put a tree of this home into the database; without an id the chosen tree, in charge unless another one is."""
        try:
            chosen_id = model_id or self._registry.chosen(device_id)
            if chosen_id is None:
                return
            model = self._registry.get(device_id, chosen_id)
        except ConvAdvisorError as error:
            log.warning("a tree of this home is not shared: %s", error)
            return
        with self._begin() as connection:
            self.keep(connection, model, in_charge=False)
            if model_id is None:
                values = {"device_id": device_id, "model_id": model.id, "activation": 1}
                connection.execute(_insert(connection, ACTIVE_MODELS).values(**values).on_conflict_do_nothing())

    def _copy(self, device_id: str, model_id: str) -> None:
        query = select(MODELS.c.card, MODELS.c.tree).where(
            MODELS.c.device_id == device_id, MODELS.c.model_id == model_id
        )
        with self._begin() as connection:
            card, content = connection.execute(query).one()
        try:
            model = decode(card, content)
            if (model.device.id, model.id) != (device_id, model_id):
                raise ModelRejected(f"it says that it is {model.id} of {model.device.id}")  # noqa: TRY301 - one way to refuse
            self._registry.add(model)
        except ModelRejected as error:
            log.warning("tree %s of %s in the database is refused: %s", model_id, device_id, error)
        except OSError as error:
            raise StoreError(f"tree {model_id} of {device_id} cannot be kept in this home: {error}") from error
        self._known.add((device_id, model_id))  # a tree that is refused now is refused for good

    def _point(self, device_id: str, model_id: str, activation: int) -> None:
        try:
            self._registry.activate(device_id, model_id, activation=activation)
        except OSError as error:
            raise StoreError(f"tree {model_id} of {device_id} cannot be put in charge in this home: {error}") from error
        except ConvAdvisorError as error:
            self._refused[device_id] = activation
            log.warning("tree %s, which is in charge of %s, cannot be used: %s", model_id, device_id, error)
        else:
            log.info("tree %s is in charge of %s", model_id, device_id)

    @contextmanager
    def _begin(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise StoreError(f"the models cannot be read or written: {error}") from error


def _put_in_charge(connection: Connection, device_id: str, model_id: str) -> None:
    first = _insert(connection, ACTIVE_MODELS).values(device_id=device_id, model_id=model_id, activation=1)
    again = {"model_id": model_id, "activation": ACTIVE_MODELS.c.activation + 1}
    connection.execute(first.on_conflict_do_update(index_elements=["device_id"], set_=again))


def _insert(connection: Connection, table: Table) -> Any:
    """An INSERT that can say what to do on a conflict; each database has its own form of it."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql  # drivers and types by the dozen, which SQLite does without

        return postgresql.insert(table)
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table)
