"""`python -m plait`, and with it `torchrun -m plait train …`."""

from plait.cli.main import main

if __name__ == "__main__":
    main()
