"""`python -m tilecast` is the `tilecast` command."""

from tilecast.cli.main import main

if __name__ == "__main__":
    main()
