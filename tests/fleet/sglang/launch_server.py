"""Stands in for `python -m sglang.launch_server` where no GPU is: its arguments and its endpoints.

What a version has is in versions.json beside it, from `tests/ctl/data/sglang_versions.yaml`. What
goes wrong is said by a file `faults` in the model's folder, one word a line: `dies-on-generate`,
`repeats`, `refuses`, `limit-N` (requests that fit its memory). Standard library alone.
"""

import argparse
import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

from sglang.srt.plugins import load_plugins
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

VERSION = version("sglang")
TABLE = json.loads((Path(__file__).parent / "versions.json").read_text())


def arguments() -> argparse.Namespace:
    """The arguments that this version knows; any other one ends the start."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in TABLE["both"]["values"]:
        parser.add_argument(name)
    for name in [*TABLE["both"]["switches"], *TABLE[VERSION]["only_here"]]:
        parser.add_argument(name, action="store_true")
    return parser.parse_args()


def log(text: str) -> None:
    """Write a line to the log."""
    sys.stderr.write(f"[2026-11-29 10:00:00] {text}\n")
    sys.stderr.flush()


def main() -> None:
    """Serve until SIGTERM."""
    asked = arguments()
    load_plugins()
    SpeculativeAlgorithm.from_string(asked.speculative_algorithm)
    faults_file = Path(asked.model_path) / "faults"
    faults = faults_file.read_text().split() if faults_file.exists() else []
    limits = [int(word[6:]) for word in faults if word.startswith("limit-")]
    limit = min([int(asked.max_running_requests), *limits])
    if os.environ["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] != "false":
        sys.exit("the probes of a fleet are to generate nothing")
    state = {"status": 503}

    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, content: object = None) -> None:
            body = b"" if content is None else json.dumps(content).encode()
            if isinstance(content, str):
                body = content.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if self.path == "/health" or (self.path == "/ready" and TABLE[VERSION]["ready"]):
                self.answer(state["status"])
            elif self.path == "/server_info":
                self.answer(
                    200,
                    {
                        "model_path": asked.model_path,
                        "tp_size": int(asked.tp_size),
                        "nccl_port": int(asked.nccl_port),
                        "grammar_backend": asked.grammar_backend,
                        "attention_backend": asked.attention_backend,
                        "speculative_algorithm": asked.speculative_algorithm,
                        "speculative_draft_model_path": asked.speculative_draft_model_path,
                        "speculative_num_draft_tokens": 16,
                        "max_running_requests": int(asked.max_running_requests),
                        "version": VERSION,
                        "internal_states": [
                            {
                                "effective_max_running_requests_per_dp": limit,
                                "avg_spec_accept_length": 3.4,
                                "last_gen_throughput": 88.0,
                            }
                        ],
                    },
                )
            elif self.path == "/metrics":
                self.answer(200, 'sglang:spec_accept_length{model_name="m"} 3.5\n')
            else:
                self.answer(404, {"detail": "Not Found"})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if self.path != "/generate":
                self.answer(404, {"detail": "Not Found"})
            elif "dies-on-generate" in faults:
                log("AttributeError: 'NoneType' object has no attribute 'device'")
                os._exit(1)
            elif "refuses" in faults_file.read_text():  # read anew: it happens while it serves
                self.answer(500, {"error": "the scheduler does not answer"})
            else:
                text = "!!!!!!!!" if "repeats" in faults else "    a, b = 0, 1"
                self.answer(200, {"text": text, "meta_info": {"spec_accept_length": 3.5}})

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((asked.host, int(asked.port)), Handler)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    algorithm = asked.speculative_algorithm
    log(
        f"Initialized {algorithm} draft runner. attention_backend={asked.attention_backend}, "
        "block_size=16"
    )
    log(f"{algorithm} draft runner ready. mask_token_id=248070")
    if limit < int(asked.max_running_requests):
        log(f"max_running_requests was reduced from {asked.max_running_requests} to {limit}")
    threading.Timer(0.3, state.update, [{"status": 200}]).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
