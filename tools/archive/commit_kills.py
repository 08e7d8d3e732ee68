"""Run ``rescorer`` with a store that kills the processes of the first two commits, at their worst moments."""

from __future__ import annotations

import os
import signal

from rescorer.cli import main as run_commands
from rescorer.shards import object_store
from rescorer.shards.store import RECORDS, LocalStore

BEFORE_RECORD, AFTER_RECORD = "killed-before-record", "killed-after-record"
"""Files in the folder of the shards that say which kill has happened."""
RUN = "from tools.archive.commit_kills import main; main()"
"""The program, for ``python -c``: in a module of its own, workers can load the class of the store."""


class KilledAtCommits(LocalStore):
    """Kills a process when its data are written and synced but have no record, and another one as soon as its
    record exists."""

    def create(self, name: str, content: bytes) -> bool:
        is_record = name.startswith(f"{RECORDS}/")
        if is_record and self._is_first(BEFORE_RECORD):
            os.kill(os.getpid(), signal.SIGKILL)
        created = super().create(name, content)
        if is_record and created and self._is_first(AFTER_RECORD):
            os.kill(os.getpid(), signal.SIGKILL)
        return created

    def _is_first(self, mark: str) -> bool:
        """Whether this is the first of all processes that asks."""
        try:
            os.close(os.open(self.folder / mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def main() -> None:
    """Run the command line with this store."""
    object_store.LocalStore = KilledAtCommits  # type: ignore[misc]
    run_commands()
