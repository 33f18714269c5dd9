"""Chat Completions and Responses upstreams to our events, and histories to their requests.

Pure: no I/O, no clock, no randomness. Ids come from the caller.
"""
