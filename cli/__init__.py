"""The operator's command line, the embedded single-machine stack and the demo upstream."""
