"""`python -m ddtreectl`."""

from ddtreectl.cli.main import main

if __name__ == "__main__":
    main()
