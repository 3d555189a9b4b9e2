"""The processes of a host."""

import os
import pwd

NO_BLANKS = dict.fromkeys([*range(32), 127], " ")


def tell_processes(mark: str) -> None:
    """Print a line for each user process: what names it, then its command line, with tabs between.

    Args:
        mark: the variable of the environment that names the generation of a process.
    """
    hertz = os.sysconf("SC_CLK_TCK")
    with open("/proc/stat", encoding="utf-8") as lines:
        boot = next(int(line.split()[1]) for line in lines if line.startswith("btime"))
    marked = mark.encode() + b"="
    users: dict[int, str] = {}
    for pid in os.listdir("/proc"):
        if not pid.isdigit():
            continue
        path = "/proc/" + pid
        try:
            argv = read(path + "/cmdline")
            if not argv:
                continue
            stat = read(path + "/stat").rpartition(b")")[2].split()
            uid = os.stat(path).st_uid
            cgroup = read(path + "/cgroup").decode(errors="replace")
        except OSError:
            continue  # it has ended
        try:
            environ = read(path + "/environ").split(b"\0")
        except OSError:
            environ = []
        if uid not in users:
            try:
                users[uid] = pwd.getpwuid(uid).pw_name
            except KeyError:
                users[uid] = str(uid)
        units = [
            part
            for line in cgroup.splitlines()
            for part in line.split("/")
            if part.endswith((".service", ".scope"))
        ]
        marks = [entry[len(marked) :] for entry in environ if entry.startswith(marked)]
        cells = [
            *(pid, stat[1].decode(), stat[0].decode(), stat[19].decode()),
            str(boot + int(stat[19]) / hertz),
            users[uid],
            units[-1] if units else "",
            marks[0].decode(errors="replace") if marks else "",
            argv[:1600].replace(b"\0", b" ").decode(errors="replace").strip()[:400],
        ]
        print("\t".join([cell.translate(NO_BLANKS) for cell in cells]))


def read(path: str) -> bytes:
    """The content of a small file of /proc."""
    file = os.open(path, os.O_RDONLY)
    try:
        pieces: list[bytes] = []
        while True:
            piece = os.read(file, 1 << 16)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
    finally:
        os.close(file)
