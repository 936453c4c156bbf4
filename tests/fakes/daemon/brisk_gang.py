"""The launcher, whose processes get a moment to leave instead of seconds: for those that never do."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from jobs.inside import gang

LEAVE_S = 0.3

if __name__ == "__main__":
    gang.LEAVE_S = gang.Gang.leave_s = LEAVE_S
    sys.exit(gang.main(sys.argv[1:]))
