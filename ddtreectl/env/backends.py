"""The packages of each backend: what is asked for, and what has to be importable afterwards."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

BackendName = Literal["engine", "sglang"]


@dataclass(frozen=True)
class Backend:
    """The packages of a backend.

    Attributes:
        name: the backend, and the first word in the name of its environments.
        distribution: the package that starts it.
        torch: the version of torch that it is made for; None for the one that is pinned.
        version: of `distribution`; None for the wheel that ddtreectl carries.
        imports: modules that a service imports, with the distributions that they come from.
        derive: whether the modules of everything that `distribution` requires are tried as well.
            Not so for SGLang, which requires more than it imports.
    """

    name: BackendName
    distribution: str
    torch: str | None = None
    version: str | None = None
    imports: Mapping[str, str] = field(default_factory=dict)
    derive: bool = False


BACKENDS: Mapping[str, Backend] = {
    "engine": Backend(
        "engine",
        "ddtree-engine",
        imports={"ddtree_engine": "ddtree-engine"},
        derive=True,
    ),
    # SGLang imports each of these when a text-only server starts, whatever its flags: soundfile
    # with the routes of the OpenAI transcription API, flashinfer with its sampler.
    "sglang": Backend(
        "sglang",
        "sglang",
        torch="2.11.0",
        version="0.5.16",
        imports={
            "sglang.launch_server": "sglang",
            "sgl_kernel": "sglang-kernel",
            "flashinfer": "flashinfer-python",
            "xgrammar": "xgrammar",
            "soundfile": "soundfile",
            "transformers": "transformers",
            "tokenizers": "tokenizers",
            "zmq": "pyzmq",
            "msgspec": "msgspec",
            "multipart": "python-multipart",
            "orjson": "orjson",
            "uvicorn": "uvicorn",
        },
    ),
}
