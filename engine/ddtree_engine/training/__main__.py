"""`python -m ddtree_engine.training PART --out FOLDER`: the training without the command line."""

import sys

from ddtree_engine.training.command import main

sys.exit(main())
