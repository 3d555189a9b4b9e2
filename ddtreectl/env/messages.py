"""What compiled packages say when they do not fit, what it means, and what helps.

Each row is a pattern of the message, its cause and a hint; `{name}` in them stands for the group
of that name. Sources: the messages of the dynamic linker (glibc, elf/dl-load.c and dl-lookup.c), of
the CUDA runtime (cudaError_t) and of torch, as they are reported in the trackers of these projects.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """A message that is understood.

    Attributes:
        name: of the row, and of its test case.
        pattern: a regular expression that finds it.
        cause: why it comes.
        hint: what to do.
    """

    name: str
    pattern: str
    cause: str
    hint: str


@dataclass(frozen=True)
class Explanation:
    """Cause and hint for one message."""

    name: str
    cause: str
    hint: str


PROVISION = "`ddtreectl provision HOST` builds an environment whose packages fit each other"

KNOWN = (
    Known(
        "undefined-torch-symbol",
        r"(?:(?P<file>[^\s:]+\.so[^\s:]*): )?undefined symbol: "
        r"(?P<symbol>_ZNK?(?:3c10|2at|5torch)\w*)",
        "{file} was built for another torch, or for the other C++ ABI: torch has no {symbol}",
        f"use a package that was built for this torch; {PROVISION}",
    ),
    Known(
        "undefined-symbol",
        r"(?:(?P<file>[^\s:]+\.so[^\s:]*): )?undefined symbol: (?P<symbol>\w+)",
        "{file} was built against other versions of the libraries that it is loaded with: none of "
        "them has {symbol}",
        PROVISION,
    ),
    Known(
        "libc10",
        r"(?P<library>lib(?:c10|torch)\w*\.so[\w.]*): cannot open shared object file",
        "a compiled package was loaded before torch, or torch is not in this environment",
        f"import torch first; if it is missing: {PROVISION}",
    ),
    Known(
        "cuda-library",
        r"(?P<library>lib(?:cudart|cublas\w*|cudnn\w*|nvrtc|cusparse\w*|cufft\w*|curand|cusolver|"
        r"nccl|nvJitLink)\.so\.(?P<major>\d+)[\w.]*): cannot open shared object file",
        "a compiled package was built for a CUDA whose {library} is not in this environment",
        "use packages of one CUDA major version throughout; those named nvidia-* tell which one "
        f"torch has. {PROVISION}",
    ),
    Known(
        "driver-library",
        r"(?P<library>lib(?:cuda|nvidia-ml)\.so[\w.]*): cannot open shared object file",
        "the user-space part of the NVIDIA driver is not installed",
        "install the driver package of the distribution that has {library}",
    ),
    Known(
        "library",
        r"(?P<library>lib[\w+.-]+\.so[\w.]*): cannot open shared object file",
        "{library} is neither in this environment nor on the host",
        "install the package of the distribution that has {library}",
    ),
    Known(
        "no-kernel-image",
        r"no kernel image is available for execution on the device",
        "a compiled package has no machine code for this GPU",
        "compare the GPU's compute capability with torch.cuda.get_arch_list(): `ddtreectl doctor` "
        f"shows both. {PROVISION}",
    ),
    Known(
        "driver-insufficient",
        r"CUDA driver version is insufficient for CUDA runtime version",
        "the driver is older than the oldest that this CUDA runs on",
        "upgrade the driver, or provision with an older `--cuda`: CUDA 13 needs driver 580, and "
        "CUDA 12 driver 525.60.13",
    ),
    Known(
        "driver-too-old",
        r"The NVIDIA driver on your system is too old \(found version (?P<version>\d+)\)",
        "torch was built for a newer CUDA than the driver serves (it serves {version})",
        "upgrade the driver, or provision with an older `--cuda`",
    ),
    Known(
        "ptx",
        r"the provided PTX was compiled with an unsupported toolchain",
        "code that the driver has to compile came from a newer CUDA than the driver knows",
        "upgrade the driver, or provision with a `--cuda` that is not newer than the driver's",
    ),
    Known(
        "nvcc-mismatch",
        r"The detected CUDA version \((?P<found>[\d.]+)\) mismatches the version that was used to "
        r"compile PyTorch \((?P<torch>[\d.]+)\)",
        "an extension is compiled with nvcc of CUDA {found}, and torch is for CUDA {torch}",
        "point CUDA_HOME at CUDA {torch}, or put a wheel that is built already into the wheelhouse",
    ),
    Known(
        "cpu-torch",
        r"Torch not compiled with CUDA enabled",
        "torch is a build for the CPU",
        PROVISION,
    ),
    Known(
        "glibc",
        r"version [`'](?P<version>GLIBC_[\d.]+)' not found(?: \(required by (?P<file>[^)]+)\))?",
        "{file} was built on a newer system: the host's glibc has no {version}",
        "use a wheel whose manylinux tag the host's glibc satisfies, or a newer distribution",
    ),
    Known(
        "glibcxx",
        r"version [`'](?P<version>(?:GLIBCXX|CXXABI)_[\d.]+)' not found"
        r"(?: \(required by (?P<file>[^)]+)\))?",
        "{file} was built with a newer compiler: the host's libstdc++ has no {version}",
        "use a manylinux wheel, or a newer distribution",
    ),
    Known(
        "driver-mismatch",
        r"system has unsupported display driver / cuda driver combination"
        r"|Driver/library version mismatch",
        "the driver was upgraded, and the kernel still runs the old module",
        "reboot the host; nothing on its GPUs can start until then",
    ),
    Known(
        "missing-module",
        r"No module named '(?P<module>[\w.]+)'",
        "the package that has `{module}` is not in the environment",
        f"add it to the wheelhouse. {PROVISION}",
    ),
    Known(
        "multipart",
        r"Form data requires \"python-multipart\" to be installed",
        "the package python-multipart is not in the environment",
        f"add it to the wheelhouse. {PROVISION}",
    ),
    Known(
        "architecture",
        r"(?P<file>[^\s:]+\.so[^\s:]*): (?:wrong ELF class|cannot open shared object file: "
        r"Exec format error|invalid ELF header)",
        "{file} was built for another kind of machine, or is damaged",
        PROVISION,
    ),
)


def explain(text: str) -> Explanation | None:
    """Cause and hint for the first message in `text` that is known, or None."""
    for row in KNOWN:
        if match := re.search(row.pattern, text):
            groups = {
                key: value or "a compiled package" for key, value in match.groupdict().items()
            }
            return Explanation(row.name, row.cause.format_map(groups), row.hint.format_map(groups))
    return None
