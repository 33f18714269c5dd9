"""The operator's command line, the embedded single-machine stack and the demo upstream."""

import gc

# Most of a short command's time is imports. Collections on the way, which find nothing, would add a
# twentieth of it.
gc.set_threshold(100_000, 20, 50)
