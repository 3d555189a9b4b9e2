"""The same questions, asked by ansible-core's modules and by pyinfra: files that each tool runs.

The commands are those that ddtreectl's probe has for a shell; what it has none for, which are
processes and HTTP, its programs do. `kinds` has a task, or a fact, for each kind, as such a play is
usually written; `once` has all in one, which is the least that the tool can do.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from shlex import join

from ddtreectl.facts import host as host_facts
from ddtreectl.facts.host import STATUS, HostFacts, Scope
from ddtreectl.facts.output import Output
from ddtreectl.facts.probe import Section

ANSIBLE_CFG = """\
[defaults]
forks = {forks}
strategy = free
host_key_checking = True
interpreter_python = /usr/bin/python3
stdout_callback = minimal
retry_files_enabled = False
[ssh_connection]
pipelining = True
ssh_args = -F {ssh_config} -o ControlMaster=auto -o ControlPersist=60s
control_path_dir = {sockets}
"""

PYINFRA_FACTS = """\
import json
from pathlib import Path

from pyinfra import host
from pyinfra.api import FactBase

COMMANDS = json.loads(Path("{commands}").read_text())


class Said(FactBase):
    def command(self, kind):
        return COMMANDS[kind]

    def process(self, output):
        return list(output)


said = [line for kind in {names} for line in host.get_fact(Said, kind=kind)]
Path("{folder}", "said", host.name).write_text("\\n".join(said) + "\\n")
"""

PYINFRA_DEPLOY = """\
from pyinfra import host
from pyinfra.operations import files, systemd

target = "/etc/systemd/system/ddtree-gpu0-tree.service"
files.put(src="{units}/" + host.name, dest=target, mode="644")
systemd.service(service="ddtree-gpu0-tree.service", running=True, enabled=True)
"""


def commands(scope: Scope) -> dict[str, str]:
    """A shell command for each kind of fact; each names its kind first, and exits 0."""
    every = host_facts.sections(scope)
    return {name: f"echo '=={name}'; {_shell(every[name])}; true" for name in STATUS}


def _shell(section: Section) -> str:
    if section.call is None or section.command:
        return f"( {section.command} )"
    return join(section.call.argv("python3"))


def facts(said: str, scope: Scope) -> HostFacts:
    """The facts of a host, from what the commands have said there."""
    parts = re.split(r"(?m)^==(\w+)\n", said)
    outputs = {name: Output(0, text) for name, text in zip(parts[1::2], parts[2::2], strict=True)}
    return host_facts.parse(outputs, scope, STATUS)


def said_to_pyinfra(folder: Path) -> dict[str, str]:
    """What each host has said in the last run of pyinfra."""
    return {path.name: path.read_text() for path in (folder / "said").iterdir()}


def said_to_ansible(printed: str) -> dict[str, str]:
    """What each host has said in a run of ansible, from what that has printed."""
    parts = re.split(r"(?m)^(\S+) \| SUCCESS \| rc=0 >>\n", printed)
    found: dict[str, str] = {}
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        found[name] = found.get(name, "") + text
    return found


def write(
    folder: Path, questions: Mapping[str, str], units: Mapping[str, str], ssh_config: Path
) -> None:
    """Write inventories, plays and deploys of both tools into `folder`.

    Args:
        folder: where to.
        questions: the commands, by kind of fact.
        units: the text of the unit file that each host has; it names the host's own GPU.
        ssh_config: how the hosts are reached.
    """
    hosts, sources = list(units), folder / "units"
    sources.mkdir()
    for name, text in units.items():
        (sources / name).write_text(text)
    together = "".join(f"{command}\n" for command in questions.values())
    all_commands = {**questions, "together": together}
    (folder / "said").mkdir()
    (folder / "commands.json").write_text(json.dumps(all_commands))
    (folder / "hosts.ini").write_text("\n".join(hosts) + "\n")
    (folder / "inventory.py").write_text(
        f"hosts = [(name, {{'ssh_config_file': {str(ssh_config)!r}}}) for name in {hosts!r}]\n"
    )
    for name, asked in (("kinds", list(questions)), ("once", ["together"])):
        tasks = [_shell_task(all_commands[question]) for question in asked]
        _play(folder / f"{name}.yml", tasks)
        (folder / f"{name}.py").write_text(
            PYINFRA_FACTS.format(commands=folder / "commands.json", folder=folder, names=asked)
        )
    target = "/etc/systemd/system/ddtree-gpu0-tree.service"
    _play(
        folder / "deploy.yml",
        [
            {
                "ansible.builtin.copy": {
                    "src": f"{sources}/{{{{ inventory_hostname }}}}",
                    "dest": target,
                    "mode": "0644",
                }
            },
            {
                "ansible.builtin.systemd_service": {
                    "name": "ddtree-gpu0-tree.service",
                    "state": "started",
                    "enabled": True,
                }
            },
        ],
    )
    (folder / "deploy.py").write_text(PYINFRA_DEPLOY.format(units=sources))


def _shell_task(command: str) -> dict[str, object]:
    text = f"{{% raw %}}{command}{{% endraw %}}"
    return {"ansible.builtin.shell": {"cmd": text}, "changed_when": False}


def _play(path: Path, tasks: list[dict[str, object]]) -> None:
    play = [{"hosts": "all", "remote_user": "root", "gather_facts": False, "tasks": tasks}]
    path.write_text(json.dumps(play, indent=1))  # JSON is YAML
