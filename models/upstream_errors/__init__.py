"""What upstreams report as errors, in the frames and the words of each vendor. Pure."""
