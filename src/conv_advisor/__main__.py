"""The command ``conv-advisor``, also as ``python -m conv_advisor``: Ctrl-C while it is imported ends it quietly."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line; while it is imported, the system handles an interrupt, which prints no traceback."""
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # and not ignored, as by nohup
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from conv_advisor.app.cli import main as run

    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
