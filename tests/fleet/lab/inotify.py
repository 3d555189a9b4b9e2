"""Inotify instances, of which a user may have only so many (fs.inotify.max_user_instances, 128).

The systemd of a host takes four of root's and does not boot without them. Labs that run at the same
time share them, so a lab waits until there are enough for its hosts.
"""

import ctypes
import os

from tests.fleet.lab.waiting import until

PER_HOST = 4
DEADLINE = 120.0


def wait_for_room(hosts: int) -> None:
    """Wait until so many hosts can boot.

    Raises:
        LabError: other labs, or other programs of root, hold too many for too long.
    """
    wanted = PER_HOST * hosts
    what = f"{wanted} inotify instances are left (sysctl fs.inotify.max_user_instances)"
    until(lambda: _can_have(wanted), what, DEADLINE, pause=0.5)


def _can_have(count: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    made: list[int] = []
    try:
        while len(made) < count:
            descriptor = libc.inotify_init1(os.O_CLOEXEC)
            if descriptor < 0:
                return False
            made.append(descriptor)
        return True
    finally:
        for descriptor in made:
            os.close(descriptor)
