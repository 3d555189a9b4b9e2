"""`python -m ddtree_engine` is `ddtree-engine`."""

import sys

from ddtree_engine.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
