"""What a host without a network needs to build an environment: the wheels, and uv."""

from ddtreectl.apply.session import Session
from ddtreectl.env.wheelhouse import Wheelhouse
from ddtreectl.facts.python import Python
from ddtreectl.hosts.protocol import check
from ddtreectl.hosts.transfer import Progress, Store
from ddtreectl.hosts.whole_input import whole

COMMAND_DEADLINE = 60.0


def have_uv(
    session: Session, python: Python, wheelhouse: Wheelhouse | None, progress: Progress
) -> str:
    """The path of uv on the host; where there is none, it is brought.

    Raises:
        RefusedError: there is none for the host's platform.
    """
    from ddtreectl.env import uv

    host, own = session.host, session.layout.tool("uv", uv.version())
    asked = host.run(uv.find(own), deadline=COMMAND_DEADLINE)
    path = uv.found(asked.stdout)
    if path is not None:
        return path
    store = Store(host, session.layout.wheels)
    with uv.brought(python, wheelhouse) as file:
        store.send([file], progress)
        link = 'mkdir -p -- "${2%/*}" && ln -f -- "$1" "$2" && chmod 755 -- "$2"'
        script = ["sh", "-c", link, "ddtreectl-tool", store.path(file), own]
        check(host.run(script, deadline=COMMAND_DEADLINE), "uv cannot be put there")
    return own


def bring_wheels(session: Session, wheelhouse: Wheelhouse, progress: Progress) -> None:
    """Send those wheels that the host has not, and lay all of them out by their names.

    Raises:
        StepError: the disk is full, or a file has changed meanwhile.
    """
    layout = session.layout
    Store(session.host, layout.wheels).send(wheelhouse.files, progress)
    names = "".join(f"{wheel.file.sha256} {wheel.name}\n" for wheel in wheelhouse.wheels)
    folder = layout.wheelhouse(wheelhouse.identity)
    script = (
        'set -e; rm -rf -- "$2.part"; mkdir -p -- "$2.part"; '
        'while read -r sum name; do ln -- "$1/$sum" "$2.part/$name"; done; '
        'rm -rf -- "$2"; mv -T -- "$2.part" "$2"'
    )
    words = ["sh", "-c", script, "ddtreectl-wheelhouse", layout.wheels, folder]
    done = session.host.run(whole(words, names.encode()), stdin=names, deadline=COMMAND_DEADLINE)
    check(done, f"the wheelhouse cannot be laid out on `{session.host.name}`")
