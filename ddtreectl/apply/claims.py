"""Claims on environments: several roots of a host may share one folder of them.

A claim is a link to the root that makes it, in a folder named after what is claimed. What another
root claims is not removed; the claims of a root that is gone lead nowhere, and do not count.
"""

from collections.abc import Iterable, Sequence
from shlex import quote

from ddtreectl.apply.session import Session
from ddtreectl.hosts.protocol import check
from ddtreectl.inventory.layout import Layout

DEADLINE = 60.0


def claim(session: Session, names: Iterable[str]) -> None:
    """Claim environments, or wheelhouses, for the root of a session."""
    layout = session.layout
    links = [f"{layout.claims(name)}/{layout.claimant}" for name in names]
    script = (
        'umask 022; root=$1; shift; for link in "$@"; do '
        'mkdir -p -- "${link%/*}" && ln -sfn -- "$root" "$link" || exit 1; done'
    )
    words = ["sh", "-c", script, "ddtreectl-claim", layout.root, *links]
    check(
        session.host.run(words, deadline=DEADLINE),
        f"what `{session.host.name}` has to keep cannot be noted in {layout.environments}",
    )


def release(session: Session, names: Sequence[str]) -> None:
    """End the claims of this root on what it does not use."""
    if names:
        script = f'{functions(session.layout)} for name in "$@"; do release "$name"; done'
        words = ["sh", "-c", script, "ddtreectl-release", *names]
        done = session.host.run(words, deadline=DEADLINE)
        check(done, f"claims in {session.layout.environments} cannot be ended")


def wheelhouse(identity: str) -> str:
    """The name that a wheelhouse is claimed by."""
    return f"wheelhouse-{identity}"


def functions(layout: Layout) -> str:
    """Shell functions: `release NAME` ends this root's claim, `claimed NAME` asks for others'."""
    folder, mine = quote(layout.claims("").rstrip("/")), quote(layout.claimant)
    return (
        f'release() {{ rm -f -- {folder}/"$1"/{mine}; '
        f'rmdir -- {folder}/"$1" 2>/dev/null || true; }}; '
        f'claimed() {{ for link in {folder}/"$1"/*; do [ "${{link##*/}}" = {mine} ] || '
        '{ [ -d "$link" ] && return 0; }; done; return 1; }; '
    )
