"""The program: `plait`, `python -m plait`, and with it `torchrun -m plait train …`."""

import sys


def main() -> None:
    """Ctrl-C is answered from the first moment: importing the command line takes a second on a busy machine."""
    try:
        from plait.cli.main import main as run
    except KeyboardInterrupt:
        print("plait: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
