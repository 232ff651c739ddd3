"""What templates were compiled to, kept from one start to the next as Python keeps that of its modules."""

from __future__ import annotations

from contextlib import suppress

from jinja2.bccache import Bucket, FileSystemBytecodeCache
from platformdirs import user_cache_path


class Compiled(FileSystemBytecodeCache):
    """Jinja's cache of files, in the user's own: it is code that will run.

    To compile the templates of one page takes as long as all else that its first view does. Where nothing can be
    written they are compiled with each start.
    """

    def __init__(self) -> None:
        folder = user_cache_path("conv-advisor") / "templates"
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        super().__init__(str(folder))

    def load_bytecode(self, bucket: Bucket) -> None:
        """Read what is kept, if it is that of this source and this Python."""
        with suppress(OSError):
            super().load_bytecode(bucket)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep it, if that can be done."""
        with suppress(OSError):
            super().dump_bytecode(bucket)
