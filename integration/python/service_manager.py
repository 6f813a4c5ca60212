"""A service manager that keeps a daemon's files, as systemd does.

Arguments: the path of the socket for notifications, and the command of the daemon.

It starts the command with the files that it keeps, and starts it again when it was killed. The
daemon's pid is in the file PATH.pid, and the number of kept files in PATH.kept.
"""

import ctypes
import os
import signal
import socket
import sys
import threading

path, *command = sys.argv[1:]
kept = {}
notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notifications.bind(path)


def write(suffix, number):
    """Replaces a file as a whole."""
    with open(path + ".new", "w", encoding="ascii") as file:
        file.write(str(number))
    os.rename(path + ".new", path + suffix)


def keep():
    """Carries out what the daemon asks for."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(notifications, 4096, 8)
        lines = dict(line.split("=", 1) for line in message.decode().split("\n") if line)
        name = lines.get("FDNAME")
        if "FDSTORE" in lines:
            kept.setdefault(name, []).extend(descriptors)
        elif "FDSTOREREMOVE" in lines:
            for descriptor in kept.pop(name, []):
                os.close(descriptor)
        else:
            continue
        write(".kept", sum(map(len, kept.values())))


def start():
    """Starts the daemon. The files have the numbers from 3 on."""
    files = [(name, descriptor) for name, its in kept.items() for descriptor in its]
    pid = os.fork()
    if pid:
        return pid
    # PR_SET_PDEATHSIG: the daemon does not outlive this service manager.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    # Above all numbers that are needed, so that none is overwritten.
    copies = [os.dup(descriptor) for _, descriptor in files]
    high = [os.dup2(copy, 500 + at) for at, copy in enumerate(copies)]
    for at, descriptor in enumerate(high):
        os.dup2(descriptor, 3 + at, inheritable=True)
    os.closerange(3 + len(files), 1024)
    os.environ["NOTIFY_SOCKET"] = path
    os.environ["LISTEN_PID"] = str(os.getpid())
    os.environ["LISTEN_FDS"] = str(len(files))
    os.environ["LISTEN_FDNAMES"] = ":".join(name for name, _ in files)
    os.execv(command[0], command)


threading.Thread(target=keep, daemon=True).start()
daemon = 0
signal.signal(signal.SIGTERM, lambda *_: os.kill(daemon, signal.SIGTERM))
while True:
    daemon = start()
    write(".pid", daemon)
    _, status = os.waitpid(daemon, 0)
    if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
        sys.exit(os.waitstatus_to_exitcode(status))
