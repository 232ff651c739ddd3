"""Cache of compiled templates, kept from one start to the next, as Python does for modules."""

from __future__ import annotations

from contextlib import suppress

from jinja2.bccache import Bucket, FileSystemBytecodeCache
from platformdirs import user_cache_path


class Compiled(FileSystemBytecodeCache):
    """Jinja's file cache, in the user's own cache folder, since it holds code that will run.

    Compiling the templates of one page takes as long as the rest of its first view. Where the folder cannot be
    written, they are compiled at each start.
    """

    def __init__(self) -> None:
        folder = user_cache_path("conv-advisor") / "templates"
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        super().__init__(str(folder))

    def load_bytecode(self, bucket: Bucket) -> None:
        """Load the cached code, if it fits this source and this Python."""
        with suppress(OSError):
            super().load_bytecode(bucket)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Store the code, if the folder can be written."""
        with suppress(OSError):
            super().dump_bytecode(bucket)
