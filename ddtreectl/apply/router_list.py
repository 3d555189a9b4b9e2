"""The list of workers on the router's host: the one thing that says who serves behind it.

The router reads the list as soon as it changes, at its start, and every few seconds. So the list is
right while the router is down, and what was taken out stays out when it comes back. Operators of
several hosts change it at the same time: each change is one command on the router's host, made
under a lock and put in place by a rename.

Two files: `slots.json` is ours and says which slots are in, and which were moved or are about to
be; `workers.json` is made of it, in the form that smg reads (version 1: `id` and `url` of each).

A worker whose name changes is taken out by smg and taken in anew, which is 5 s without requests. So
the slot that a service moves to has the name of one that stands for another before it is put in.
"""

from typing import Literal

from ddtreectl.apply.session import Session
from ddtreectl.errors import StepError
from ddtreectl.facts.router import parse_list
from ddtreectl.hosts.protocol import check

DEADLINE = 30.0
Change = Literal["show", "add", "remove", "expect", "unexpect", "move", "unmove"]

# Arguments: the folder, what to do, and its words.
#   add SLOT URL | remove SLOT | move SLOT OTHER (OTHER stands for SLOT from now on) | unmove SLOT
#   expect SLOT OTHER (it is about to: OTHER has the name for it, and SLOT serves on meanwhile)
#   unexpect SLOT OTHER
PROGRAM = r"""
import fcntl, json, os, sys
folder, change, words = sys.argv[1], sys.argv[2], sys.argv[3:]
def read():
    try:
        with open(os.path.join(folder, "slots.json")) as file:
            return {"expected": {}, **json.load(file)}
    except FileNotFoundError:
        return {"workers": {}, "moved": {}, "expected": {}}
if change == "show":
    print(json.dumps(read()))
    sys.exit()
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
    if change == "add" and words[0] not in moved:
        for other in [slot for slot, url in slots.items() if url == words[1]]:
            del slots[other]  # a slot that was renamed; smg refuses a list with an address twice
        slots[words[0]] = words[1]
    elif change == "remove":
        slots.pop(words[0], None)
    elif change == "expect":
        expected[words[0]] = words[1]
    elif change == "unexpect" and expected.get(words[0]) == words[1]:
        del expected[words[0]]
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
print(json.dumps(kept))
"""


def folder(session: Session) -> str:
    """Where the lists lie on the router's host."""
    return f"{session.layout.root}/router"


def path(session: Session) -> str:
    """The list that the router reads."""
    return f"{folder(session)}/workers.json"


def change(session: Session, what: Change, *words: str) -> tuple[dict[str, str], dict[str, str]]:
    """Change the list, or show it. Returns what it is afterwards: listed slots, and moved ones.

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


_CHANGES = ("add", "remove", "expect", "unexpect", "move", "unmove")
_DONE = {"show": "read", **dict.fromkeys(_CHANGES, "changed")}
