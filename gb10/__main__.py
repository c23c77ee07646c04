"""`python -m gb10`: the command line in cli/."""

from gb10.cli import main

if __name__ == "__main__":
    main()
