"""Listening TCP sockets, as the kernel has them."""

import os

from ddtreectl.on_host.commands import said, there

LISTEN = "0A"


def tell_ports() -> None:
    """Print the listeners and the processes that hold them, as `ss` does or from /proc.

    Of /proc/net/tcp the kernel walks all places where a connection could be, for each reader.
    """
    if there("ss"):
        print(said(["ss", "-H", "-l", "-t", "-n", "-p"])[1], end="")
    else:
        tell_ports_of_proc()


def tell_ports_of_proc() -> None:
    """Print the lines of /proc/net that are about listeners, and the processes that hold them."""
    names = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not os.path.exists(table):
            continue
        with open(table, encoding="utf-8") as lines:
            for line in lines:
                columns = line.split()
                if columns[3] == LISTEN:
                    names.add("socket:[" + columns[9] + "]")
                    print(line, end="")
    for pid in os.listdir("/proc") if names else ():
        if not pid.isdigit():
            continue
        folder = "/proc/" + pid + "/fd"
        try:
            files = os.listdir(folder)
        except OSError:
            continue  # it has ended
        for name in files:
            try:
                target = os.readlink(folder + "/" + name)
            except OSError:
                continue  # it has been closed
            if target in names:
                print(folder, target)
