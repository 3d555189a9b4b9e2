"""What services of the host answer over HTTP."""

import time

try:
    import _socket as socket  # `socket` is this with names for its numbers, which take long to make
except ImportError:
    import socket  # type: ignore[no-redef]

MOST = 1 << 20


def tell_answers(
    requests: "list[tuple[str, float, str | None, list[str] | None, str | None]]",
) -> None:
    """Make requests in order, and print an answer a line: URL, status, error and body, escaped.

    Args:
        requests: URL, seconds, body, beginnings of wanted lines, file with the API key of each.
    """
    for url, timeout, body, kept, key_file in requests:
        status, said, error = "", "", ""
        try:
            code, said = ask(url, timeout, body, key_file)
            status = str(code)
            if kept is not None:
                wanted = tuple(kept)
                lines = [line for line in said.split("\n") if line.startswith(wanted)]
                said = "".join([line + "\n" for line in lines])
        except socket.timeout:  # noqa: UP041 - it is another one before Python 3.10
            error = "timed out"
        except Exception as failure:  # noqa: BLE001 - whatever it is, it is the answer
            error = str(failure) or type(failure).__name__
        print("\t".join([ascii(cell)[1:-1] for cell in (url, status, error, said)]), flush=True)


def ask(url: str, timeout: float, body: "str | None", key_file: "str | None") -> "tuple[int, str]":
    """Make a request, and return the status and the body of the answer."""
    authority, _, path = url.partition("//")[2].partition("/")
    address, _, port = authority.rpartition(":")
    content = (body or "").encode()
    head = [
        ("GET /" if body is None else "POST /") + path + " HTTP/1.1",
        "Host: " + authority,
        "Connection: close",
        "Content-Type: application/json",
        "Content-Length: " + str(len(content)),
    ]
    if key_file:
        with open(key_file, encoding="utf-8") as file:
            head.append("Authorization: Bearer " + file.read().split()[0])
    end = time.monotonic() + timeout
    address = address.strip("[]")
    peer = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        peer.settimeout(timeout)
        peer.connect((address, int(port)))
        peer.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + content)
        return received(peer, end)
    finally:
        peer.close()


def received(peer: "socket.socket", end: float) -> "tuple[int, str]":
    """The status and the body that a peer sends, until the time `end`."""
    data = b""
    while True:
        head, split, rest = data.partition(b"\r\n\r\n")
        fields = {}
        for line in head.decode("latin-1").split("\r\n")[1:]:
            name, _, value = line.partition(":")
            fields[name.strip().lower()] = value.strip().lower()
        chunked = fields.get("transfer-encoding", "") == "chunked"
        size = int(fields.get("content-length") or MOST)
        if split and not chunked and len(rest) >= size:
            rest = rest[:size]
            break
        if len(data) > MOST:
            break
        peer.settimeout(max(end - time.monotonic(), 0.001))
        piece = peer.recv(1 << 16)
        if not piece:
            break
        data += piece
    words = head.split(None, 2)
    if not split or not words[0].startswith(b"HTTP/"):
        raise ValueError("no HTTP answer" if data else "it closed the connection without a word")
    whole, rest = (b"", rest) if chunked else (rest, b"")
    while rest:
        length, _, rest = rest.partition(b"\r\n")
        count = int(length.partition(b";")[0] or b"0", 16)
        whole, rest = whole + rest[:count], rest[count + 2 :] if count else b""
    return int(words[1]), whole.decode("utf-8", "replace")
