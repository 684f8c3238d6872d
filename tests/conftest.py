"""For all tests: compute threads that wait must not spin, since several engines share few cores."""

from __future__ import annotations

import os

# read by libgomp when it is loaded, and inherited by the servers and engines that tests start
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
