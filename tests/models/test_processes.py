"""Processes that train: none outlives the one that started it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from conv_advisor.models.training.threads import processes


def test_results_come_in_the_order_of_the_inputs_and_from_other_processes() -> None:
    with processes(2) as process_map:
        assert list(process_map(divmod, [7, 9, 11], [2, 3, 4])) == [(3, 1), (3, 0), (2, 3)]
    with processes(1) as process_map:
        assert process_map is map


def test_processes_end_with_the_one_that_started_them_however_that_ends(tmp_path: Path) -> None:
    script = tmp_path / "starter.py"
    script.write_text(
        "import multiprocessing, time\n"
        "from conv_advisor.models.training.threads import processes\n"
        'if __name__ == "__main__":\n'
        "    with processes(2) as process_map:\n"
        "        list(process_map(abs, [-1, -2]))\n"
        "        print(*(child.pid for child in multiprocessing.active_children()), flush=True)\n"
        "        time.sleep(600)\n",
        encoding="utf-8",
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout
        children = [int(pid) for pid in starter.stdout.readline().split()]
        starter.send_signal(signal.SIGKILL)
    assert children
    deadline = time.monotonic() + 30
    while any(_is_running(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_is_running(pid) for pid in children)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # one that ended and that nobody waited for
