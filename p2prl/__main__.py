"""`python -m p2prl`: the same as `p2prl`, where the scripts folder is not on the path."""

import sys

from p2prl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
