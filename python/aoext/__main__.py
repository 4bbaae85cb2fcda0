"""`python -m aoext` is the command `aoext`."""

from aoext.cli import main

if __name__ == "__main__":
    main()
