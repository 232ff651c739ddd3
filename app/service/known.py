"""What a process without a server answers and trains from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conv_advisor.app.settings import Settings
    from conv_advisor.data.records import Records


def records_of(settings: Settings) -> Records:
    """What ships, and the store's own measurements if there is a store: asking creates none.

    Raises
    ------
    StoreError
    """
    from conv_advisor.data.records import Records

    if not settings.has_store:
        return Records()
    from conv_advisor.data.store import Store  # the database and its libraries, which a new user does without

    return Records(Store(settings.store_url))
