"""Hold so many streams open at the simulated endpoint and read what comes, as cheaply as Python can.

    python streams.py URL STREAMS ROUNDS TOKENS SPREAD_S PROMPT_TOKENS

Each of STREAMS connections sends ROUNDS requests one after the other, of PROMPT_TOKENS and TOKENS of output each; their
first ones are spread evenly over SPREAD_S seconds. Prints the number of requests that were answered in full.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from urllib.parse import urlsplit

_END = b"\r\n0\r\n\r\n"


def main() -> None:
    where = urlsplit(sys.argv[1])
    streams, rounds, tokens = map(int, sys.argv[2:5])
    spread_s, prompt_tokens = float(sys.argv[5]), int(sys.argv[6])
    selector = selectors.DefaultSelector()
    begun_ns = time.monotonic_ns()
    left: dict[socket.socket, int] = {}
    waiting = [(spread_s * number / streams, number) for number in range(streams)]
    waiting.reverse()
    answered = 0
    while waiting or left:
        now_s = (time.monotonic_ns() - begun_ns) / 1e9
        while waiting and waiting[-1][0] <= now_s:
            _, number = waiting.pop()
            connection = socket.create_connection((where.hostname, where.port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            request = _request(number, prompt_tokens, tokens)
            selector.register(connection, selectors.EVENT_READ, request)
            left[connection] = rounds
            connection.sendall(request)
        pause_s = max(waiting[-1][0] - now_s, 0) if waiting else None
        for key, _ in selector.select(pause_s):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            data = connection.recv(1 << 16)
            if data.endswith(_END):
                answered += 1
                left[connection] -= 1
                if left[connection]:
                    connection.sendall(key.data)
            if not data or not left[connection]:
                selector.unregister(connection)
                connection.close()
                del left[connection]
    print(answered)


def _request(number: int, prompt_tokens: int, tokens: int) -> bytes:
    prompt = [number, *range(prompt_tokens - 1)]
    body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    raw = json.dumps(body).encode()
    return b"POST /v1/completions HTTP/1.1\r\nhost: sim\r\ncontent-length: %d\r\n\r\n%b" % (len(raw), raw)


if __name__ == "__main__":
    main()
