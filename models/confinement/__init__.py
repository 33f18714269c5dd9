"""What a process gives up for good, so that an attacker who takes it over gains little.

`policy.py` is the interface: a process of its own applies a Policy before it looks at hostile
bytes. `forbid_dumps` of `kernel.py` is for the processes that hold keys. Linux has all of it;
`missing()` says what the system lacks. Nothing but the standard library is imported, so that a
process starts fast.
"""
