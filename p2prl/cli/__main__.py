"""`python -m p2prl.cli`: the same as `p2prl`."""

import sys

from p2prl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
