"""The health of a host's GPUs, for a reader. Pure."""

from dataclasses import dataclass

from ddtreectl.facts.cordons import Cordon
from ddtreectl.facts.host import HostFacts
from ddtreectl.gpu.classify import classify
from ddtreectl.gpu.verdict import Verdict
from ddtreectl.inventory.model import HostEntry


@dataclass(frozen=True)
class Remark:
    """One thing that is not as it should be.

    Attributes:
        gpu: the GPU; empty where it is the driver or the host.
        verdict: what it leads to.
        reason: what was seen, in words.
        hint: what to do; empty where there is nothing to do.
        source: who says that it leads to that.
        sign: the row of the table that it is.
    """

    gpu: str
    verdict: Verdict
    reason: str
    hint: str
    source: str
    sign: str

    def __str__(self) -> str:
        """How messages tell it."""
        return f"{self.verdict}: {f'{self.gpu}: ' if self.gpu else ''}{self.reason}"


@dataclass(frozen=True)
class GpuVerdict:
    """One GPU.

    Attributes:
        name: `GPU 1`, or its PCI address where nothing enumerates it.
        uuid: names the card.
        pci: domain:bus:device.
        verdict: what has to be done.
        cordoned: whether nothing may be started on it.
    """

    name: str
    uuid: str | None
    pci: str | None
    verdict: Verdict
    cordoned: bool


@dataclass(frozen=True)
class GpuReport:
    """The GPUs of a host.

    Attributes:
        verdict: the gravest.
        gpus: each of them.
        remarks: what is not as it should be, the gravest first.
        cordons: where nothing may be started.
    """

    verdict: Verdict = Verdict.OK
    gpus: tuple[GpuVerdict, ...] = ()
    remarks: tuple[Remark, ...] = ()
    cordons: tuple[Cordon, ...] = ()

    @property
    def wrong(self) -> bool:
        """Whether somebody has to act."""
        return self.verdict.rank >= Verdict.RESTART_APP.rank


def gpu_report(name: str, entry: HostEntry, facts: HostFacts) -> GpuReport:
    """What `facts` mean for the GPUs of a host."""
    health = classify(name, entry, facts, facts.records.settled)
    cordons = facts.records.cordons

    def cordoned(index: int | None) -> bool:
        if index is None:
            return any(cordon.gpu is None for cordon in cordons)
        return any(cordon.covers(index, facts.gpus) for cordon in cordons)

    return GpuReport(
        verdict=health.verdict,
        gpus=tuple(
            GpuVerdict(gpu.name, gpu.uuid, gpu.pci, gpu.verdict, cordoned(gpu.index))
            for gpu in health.gpus
        ),
        remarks=tuple(
            Remark(gpu, found.verdict, found.reason, found.hint, found.source, found.sign)
            for gpu, found in health.remarks()
        ),
        cordons=cordons,
    )
