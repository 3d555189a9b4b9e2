"""Verdicts on GPUs and hosts, from nothing to do to everything."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What has to be done, in the order of how much that is."""

    OK = "ok"
    DEGRADED = "degraded"
    RESTART_APP = "restart-app"
    DRAIN_GPU = "drain-gpu"
    CORDON_HOST = "cordon-host"

    @property
    def rank(self) -> int:
        """0 for `ok`, and more the worse it is."""
        return list(Verdict).index(self)

    @property
    def takes_no_service(self) -> bool:
        """Whether nothing may be started there any more."""
        return self in {Verdict.DRAIN_GPU, Verdict.CORDON_HOST}


@dataclass(frozen=True)
class Finding:
    """One thing that was seen.

    Attributes:
        sign: the row of the table that it is.
        verdict: what it leads to.
        reason: what was seen, in words.
        hint: what to do; empty where there is nothing to do.
        source: where the row has its verdict from.
    """

    sign: str
    verdict: Verdict
    reason: str
    hint: str
    source: str


def worst(findings: "tuple[Finding, ...]") -> Finding | None:
    """The finding that decides; the first of those that weigh the same."""
    return max(findings, key=lambda finding: finding.verdict.rank, default=None)


@dataclass(frozen=True)
class GpuHealth:
    """A GPU.

    Attributes:
        index: its place in PCI order, or None where nothing enumerates it.
        uuid: names the card.
        pci: domain:bus:device.
        findings: what was seen; those that lead to nothing included.
    """

    index: int | None
    uuid: str | None
    pci: str | None
    findings: tuple[Finding, ...] = ()

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"GPU {self.pci or '?'}" if self.index is None else f"GPU {self.index}"

    @property
    def verdict(self) -> Verdict:
        """The gravest of its findings."""
        found = worst(self.findings)
        return found.verdict if found else Verdict.OK


@dataclass(frozen=True)
class HostHealth:
    """A host and its GPUs.

    Attributes:
        gpus: its GPUs.
        findings: what was seen of the driver or of the host.
    """

    gpus: tuple[GpuHealth, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The gravest verdict on the host or one of its GPUs."""
        found = [finding.verdict for finding in self.findings]
        return max((*found, *(gpu.verdict for gpu in self.gpus)), key=_rank, default=Verdict.OK)

    def remarks(self) -> list[tuple[str, Finding]]:
        """What the reader should know, the gravest first: the GPU or "" for the host, and what."""
        named = [("", finding) for finding in self.findings]
        named += [(gpu.name, finding) for gpu in self.gpus for finding in gpu.findings]
        kept = [(name, finding) for name, finding in named if finding.verdict is not Verdict.OK]
        return sorted(kept, key=lambda pair: -pair[1].verdict.rank)

    def against(self, indices: list[int]) -> tuple[str, Finding] | None:
        """Why no service may be started on those GPUs: the gravest reason, or None."""
        for name, finding in self.remarks():
            mine = name in {"", *(f"GPU {index}" for index in indices)}
            if finding.verdict is Verdict.CORDON_HOST or (
                mine and finding.verdict.takes_no_service
            ):
                return name, finding
        return None


def _rank(verdict: Verdict) -> int:
    return verdict.rank
