"""What the server of `rl_twoclocks.forked` imports before it forks."""

import os

import rl_twoclocks.loop  # noqa: F401

# A signal to the group of the process that waits is for it, not for the server: it ends its runs.
os.setsid()
