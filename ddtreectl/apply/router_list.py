"""The list of workers on the router's host: the one thing that says who serves behind it.

The router reads the list as soon as it changes, at its start, and every few seconds. So the list is
right while the router is down, and what was taken out stays out when it comes back. Operators of
several hosts change it at the same time: each change is one command on the router's host, made
under a lock and put in place by a rename.

Two files: `slots.json` is ours and says which slots are in, and which were moved or are about to
be; `workers.json` is made of it, in the form that smg reads (version 1: `id` and `url` of each).

A worker whose name changes is taken out by smg and taken in anew, which is 5 s without requests. So
the slot that a service moves to has the name of one that stands for another before it is put in,
and keeps it until the slot that it gives back has requests of its own.

Whoever takes a worker out for a swap has looked which others serve its model. So that two who look
at the same time do not each count on the other's worker, the list has a revision: a removal that
names one is made only while it is still the list's. What is out is noted with its models, up to
when it should be back: it is not gone, and who comes meanwhile waits for it.
"""

from typing import Literal

from ddtreectl.apply.session import Session
from ddtreectl.errors import StepError
from ddtreectl.facts.router import WorkerList, parse_list
from ddtreectl.hosts.protocol import check

DEADLINE = 30.0
Change = Literal["show", "add", "remove", "expect", "unexpect", "move", "unmove", "return"]
SETTLES_WITHIN = 40
"""Seconds that a worker that is on the list again may take until the router sends it requests."""

# Arguments: the folder, what to do, and its words.
#   add SLOT URL | move SLOT OTHER (OTHER stands for SLOT from now on) | unmove SLOT
#   remove SLOT, or remove SLOT REVISION SECONDS MODELS (JSON): it comes back within that time
#   expect SLOT OTHER (it is about to: OTHER has the name for it, and SLOT serves on meanwhile)
#   unexpect SLOT OTHER | return SLOT OTHER (what has moved comes back: OTHER keeps the name)
PROGRAM = r"""
import fcntl, json, os, sys, time
folder, change, words = sys.argv[1], sys.argv[2], sys.argv[3:]
def read():
    try:
        with open(os.path.join(folder, "slots.json")) as file:
            kept = {"expected": {}, "out": {}, "revision": 0, **json.load(file)}
    except FileNotFoundError:
        kept = {"workers": {}, "moved": {}, "expected": {}, "out": {}, "revision": 0}
    kept["out"] = {slot: e for slot, e in kept["out"].items() if e["until"] > time.time()}
    return kept
def tell(kept, made):
    print(json.dumps({**kept, "made": made}))
    sys.exit()
if change == "show":
    tell(read(), False)
os.makedirs(folder, 0o755, exist_ok=True)
os.chmod(folder, 0o755)
def write(name, content):
    path = os.path.join(folder, name)
    with open(path + ".new", "w") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(json.dumps(content, indent=1, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)
with open(os.path.join(folder, "lock"), "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    kept = read()
    slots, moved, expected = kept["workers"], kept["moved"], kept["expected"]
    if change == "remove" and words[1:] and int(words[1]) != kept["revision"]:
        tell(kept, False)
    kept["revision"] += 1
    if change == "add" and words[0] not in moved:
        for other in [slot for slot, url in slots.items() if url == words[1]]:
            del slots[other]  # a slot that was renamed; smg refuses a list with an address twice
        slots[words[0]] = words[1]
        if words[0] in kept["out"]:
            kept["out"][words[0]]["until"] = time.time() + SETTLES
    elif change == "remove":
        slots.pop(words[0], None)
        kept["out"].pop(words[0], None)
        if words[1:]:
            until = time.time() + float(words[2])
            kept["out"][words[0]] = {"until": until, "models": json.loads(words[3])}
    elif change == "expect":
        expected[words[0]] = words[1]
    elif change == "unexpect" and expected.get(words[0]) == words[1]:
        del expected[words[0]]
    elif change == "return":
        if moved.pop(words[0], None) == words[1]:
            expected[words[0]] = words[1]
    elif change == "move":
        expected.pop(words[0], None)
        slots.pop(words[0], None)
        moved.pop(words[1], None)
        for slot, by in moved.items():
            moved[slot] = words[1] if by == words[0] else by
        moved[words[0]] = words[1]
    elif change == "unmove":
        moved.pop(words[0], None)
        expected.pop(words[0], None)
    write("slots.json", kept)
    entries = []
    for slot, url in slots.items():
        others = {other for other, by in {**expected, **moved}.items() if by == slot}
        others |= {other for other, by in moved.items() if by in others}
        names = ",".join(sorted(others))
        entries.append({"id": slot + (" for " + names if names else ""), "url": url})
    write("workers.json", {"version": 1, "workers": entries})
tell(kept, True)
""".replace("SETTLES", str(SETTLES_WITHIN))


def folder(session: Session) -> str:
    """Where the lists lie on the router's host."""
    return f"{session.layout.root}/router"


def path(session: Session) -> str:
    """The list that the router reads."""
    return f"{folder(session)}/workers.json"


def change(session: Session, what: Change, *words: str) -> WorkerList:
    """Change the list, or show it. Returns what it is afterwards.

    A slot that was moved is not added: what stands for it has to be moved back first.

    Raises:
        UnreachableError: the router's host does not answer.
        StepError: the list cannot be read or written.
    """
    argv = [session.python, "-IS", "-c", PROGRAM, folder(session), what, *words]
    result = session.host.run(argv, deadline=DEADLINE)
    found = f"the list of workers on `{session.host.name}` cannot be {_DONE[what]}"
    check(result, found, hint=f"the list is in {folder(session)}")
    listed = parse_list(result.stdout)
    if listed is None:
        raise StepError(found, cause=result.said[-500:])
    return listed


_CHANGES = ("add", "remove", "expect", "unexpect", "move", "unmove", "return")
_DONE = {"show": "read", **dict.fromkeys(_CHANGES, "changed")}
