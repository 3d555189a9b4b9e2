"""What may happen to a host, or to its operator, while a step of a swap is held."""

import subprocess
from collections.abc import Callable

from tests.fleet.deployer import Deployer
from tests.fleet.lab.hold import Hold
from tests.fleet.lab.waiting import until

ENDS_WITHIN = 120.0
SETTLES_WITHIN = 60.0


class Strike:
    """A deploy whose step is held, to be hurt."""

    def __init__(self, operator: Deployer, process: "subprocess.Popen[str]", hold: Hold) -> None:
        self.operator = operator
        self.host = operator.host
        self.process = process
        self.hold = hold
        self.said = ""

    def end(self) -> None:
        """Let the step go on, and wait for the end of the deploy."""
        self.hold.release()
        _, self.said = self.process.communicate(timeout=ENDS_WITHIN)

    def cut(self) -> None:
        self.host.cut()
        self.end()
        if self.operator.reverting():
            until(lambda: not self.operator.reverting(), "it returns alone", SETTLES_WITHIN)

    def slow(self) -> None:
        self.host.slow(delay=0.08, jitter=0.03, loss=0.02)
        self.end()

    def power(self) -> None:
        self.host.kill()
        self.host.start()
        self.end()

    def reboot(self) -> None:
        self.host.reboot()
        self.end()

    def full(self) -> None:
        self.host.fill(16)
        self.end()

    def hang(self) -> None:
        """The command hangs until its operator has enough of it and stops the deploy."""
        self.process.terminate()
        _, self.said = self.process.communicate(timeout=ENDS_WITHIN)

    def reset(self) -> None:
        self.host.reset_connections()
        self.end()

    def killed(self) -> None:
        """The operator's process ends at once; what was held comes late."""
        self.process.kill()
        self.process.communicate()
        self.hold.release()


FAULTS: dict[str, Callable[[Strike], None]] = {
    "cut": Strike.cut,
    "slow": Strike.slow,
    "power": Strike.power,
    "reboot": Strike.reboot,
    "full": Strike.full,
    "hang": Strike.hang,
    "reset": Strike.reset,
    "killed": Strike.killed,
}
