"""What code of a model tries in a session, one attack an expression; the kernel must refuse it.

`attack_cell` is the code of one cell that tries all of them. It prints attack -> outcome as JSON:
`refused`, `done` or what went wrong.
"""

import json

ATTACKS = {
    # network
    **{
        f"a socket {family} {kind}": f"socket.socket(socket.{family}, socket.{kind})"
        for family, kind in (
            ("AF_INET", "SOCK_STREAM"),
            ("AF_INET", "SOCK_DGRAM"),
            ("AF_INET", "SOCK_RAW"),
            ("AF_INET6", "SOCK_STREAM"),
            ("AF_INET6", "SOCK_DGRAM"),
            ("AF_UNIX", "SOCK_STREAM"),
            ("AF_UNIX", "SOCK_DGRAM"),
            ("AF_NETLINK", "SOCK_RAW"),
            ("AF_PACKET", "SOCK_RAW"),
            ("AF_VSOCK", "SOCK_STREAM"),
            ("AF_ALG", "SOCK_SEQPACKET"),
        )
    },
    "a name of DNS": "socket.getaddrinfo('example.com', 80)",
    "another protocol": "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)",
    "a bound socket": "socket.socketpair()[0].bind('bound')",
    "a listening socket": "socket.socketpair()[0].listen()",
    "an accepted connection": "socket.socketpair()[0].accept()",
    "a datagram to the system's log": "datagram_socket()",
    # other processes
    "a signal to the sandbox": "os.kill(os.getppid(), 0)",
    "a signal to another session": "os.kill(other_pid, 0)",
    "a signal by pidfd": "call(434, os.getppid(), 0)",
    "ptrace of the sandbox": "call(101, 16, os.getppid(), 0, 0)",
    "ptrace of another session": "call(101, 16, other_pid, 0, 0)",
    "memory of another process": "call(310, other_pid, 0, 0, 0, 0, 0)",
    "limits of another process": "resource.prlimit(other_pid, resource.RLIMIT_CPU, (0, 0))",
    "priority of another process": "os.setpriority(os.PRIO_PROCESS, other_pid, 19)",
    "a child of the sandbox itself": "clone(0x8000)",
    "leaving the group of processes": "os.setpgid(0, 0)",
    "a new session of processes": "os.setsid()",
    "memory that sessions share": "call(29, 0x1234, 4096, 0o1666)",
    "semaphores that sessions share": "call(64, 0x1234, 1, 0o1666)",
    "queues that sessions share": "call(68, 0x1234, 0o1666)",
    "queues with names": "call(240, b'/queue', 0o102, 0o666, 0)",
    # files
    "the folder of another session": "os.listdir(other_folder)",
    "a file of another session": "open(other_folder + '/secret.txt')",
    "a change of another session": "open(other_folder + '/new.txt', 'w')",
    "environment of the sandbox": "open(f'/proc/{os.getppid()}/environ', 'rb')",
    "environment of another session": "open(f'/proc/{other_pid}/environ', 'rb')",
    "the list of processes": "os.listdir('/proc')",
    "a folder of another process": "os.listdir(f'/proc/{other_pid}/cwd/')",
    "the sandbox's folder": "os.listdir(pathlib.Path(os.getcwd()).parents[1])",
    "the users of the system": "open('/etc/passwd')",
    "a write to /tmp": "open('/tmp/written', 'w')",
    "a write to /dev/shm": "open('/dev/shm/written', 'w')",
    "a write outside": "open(outside + '/written', 'w')",
    "a link out": "(os.symlink('/etc/passwd', 'link'), open('link'))",
    "a hard link in": "os.link(outside + '/victim', 'hard')",
    "a rename in": "os.rename(outside + '/victim', 'stolen')",
    "its own folder replaced": "os.rename(os.getcwd(), os.getcwd() + '2')",
    "a device": "os.mknod('device', stat.S_IFBLK | 0o600, os.makedev(8, 0))",
    "a written program": "run_written()",
    "a program in memory": "call(319, b'program', 0)",
    "a program by descriptor": "call(322, -1, b'', 0, 0, 0x1000)",
    "a setuid program": "setuid_program()",
    # the kernel
    **{
        f"a namespace {flag:#x}": f"call(272, {flag:#x})"
        for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x4000000, 0x2000000, 0x8000000)
    },
    "a namespace by clone": "clone(0x10000000)",
    "a mount": "call(165, b'none', b'/mnt', b'tmpfs', 0, 0)",
    "a mount of a tree": "call(428, -100, b'/', 1)",
    "another root": "os.chroot('.')",
    "io_uring": "call(425, 1, bytes(120))",
    "a keyring": "call(250, 0, -3, 0)",
    "a key": "call(248, b'user', b'name', b'x', 1, -3)",
    "bpf": "call(321, 0, bytes(120), 120)",
    "userfaultfd": "call(323, 0)",
    "perf": "call(298, bytes(120), 0, -1, -1, 0)",
    "a filter that lets calls pass": "call(317, 1, 8, bytes(16))",
    "another personality": "call(135, 0x0040000)",
    "a handle of a file": "call(304, -100, bytes(120), 0)",
    "the kernel's log": "call(103, 3, bytes(120), 120)",
    "segments": "call(154, 1, bytes(16), 16)",
    "another user": "another_user()",
    "the host's name": "socket.sethostname('x')",
    "the clock": "time.clock_settime(time.CLOCK_REALTIME, 1)",
    "more memory than it may have": "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
}
"""Numbers of calls are those of x86-64."""

_PRELUDE = """
import ctypes, errno, json, os, pathlib, resource, socket, stat, subprocess, sys, time
globals().update(json.loads({facts!r}))
libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *(
        each if isinstance(each, bytes) else ctypes.c_long(each) for each in arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def clone(flags):
    if call(56, flags | 17, 0, 0, 0, 0) == 0:
        os._exit(0)

def datagram_socket():
    ours, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.sendto(b"x", "/dev/log")

def run_written():
    pathlib.Path("program").write_text("#!/bin/sh\\n")
    os.chmod("program", 0o755)
    subprocess.run(["./program"], check=True)

def setuid_program():
    done = subprocess.run(["/bin/su", "-c", "true"], stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode or b"uid=0" not in subprocess.check_output(["id"]):
        raise PermissionError

def another_user():
    try:
        os.setuid(0 if os.getuid() else 1)
    except OSError as error:
        raise PermissionError from error

outcomes = {{}}
for name, attack in json.loads({attacks!r}).items():
    try:
        eval(attack)
        outcomes[name] = "done"
    except (PermissionError, FileNotFoundError, socket.gaierror):
        outcomes[name] = "refused"
    except OSError as error:
        refusals = (errno.ENOSYS, errno.EROFS, errno.EXDEV, errno.EAFNOSUPPORT, errno.ENOMEM)
        outcomes[name] = "refused" if error.errno in refusals else repr(error)
    except Exception as error:
        outcomes[name] = "refused" if isinstance(error, ValueError) else repr(error)
print(json.dumps(outcomes))
"""


def attack_cell(other_pid: int, other_folder: str, outside: str) -> str:
    """The code of the cell. `other_pid` and `other_folder`: of another session; `outside`: a
    folder that the sandbox's user may write."""
    facts = {"other_pid": other_pid, "other_folder": other_folder, "outside": outside}
    return _PRELUDE.format(facts=json.dumps(facts), attacks=json.dumps(ATTACKS))
