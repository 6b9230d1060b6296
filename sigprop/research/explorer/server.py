"""The server of the explorer: the standard library's, bound to loopback, for this page alone.

What `http.server` leaves to its user is done below: the `Host` must be this machine's loopback (or a web page elsewhere
could reach it by a name of its own), nothing is answered to another origin, and the page may load nothing from
elsewhere.
"""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from sigprop.errors import InputError, SigpropError
from sigprop.research.explorer.page import answer, as_json, page_text, script_text

PORT = 8765
HOST = "127.0.0.1"
LONGEST = 4096
"""Characters of an address."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Explorer(ThreadingHTTPServer):
    """The page on a port of loopback; port 0 takes any that is free."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int = PORT):
        self.computing = ThreadPoolExecutor(1)  # one at a time, in one thread: torch makes workers for every new one
        try:
            super().__init__((HOST, port), _Answers)
        except OverflowError as error:
            raise InputError(f"port {port} is not allowed: needs a number from 0 to 65535") from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise InputError(
                    f"port {port} is in use: end what uses it, or take another with --port (0: any that is free)"
                ) from error
            raise InputError(f"port {port} cannot be opened: {error.strerror or error}") from error

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    @property
    def origins(self) -> tuple[str, ...]:
        return tuple(f"http://{name}:{self.server_port}" for name in (HOST, "localhost"))

    def server_close(self) -> None:
        super().server_close()
        self.computing.shutdown(wait=False, cancel_futures=True)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that went away before it had its answer is no fault."""


class _Answers(BaseHTTPRequestHandler):
    server: Explorer
    server_version, sys_version = "sigprop", ""
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: two small ones wait for each other on loopback
    timeout = 60

    def do_GET(self) -> None:
        refused = self._refused()
        if refused:
            return self._send(403, "text/plain", refused.encode())
        address = urlsplit(self.path)
        if len(self.path) > LONGEST:
            return self._send(414, "text/plain", b"the address is too long")
        if address.path == "/":
            return self._send(200, "text/html", page_text().encode())
        if address.path == "/explore.js":
            return self._send(200, "text/javascript", script_text().encode())
        if address.path == "/view":
            return self._view(address.query)
        return self._send(404, "text/plain", b"there is no such page")

    def _refused(self) -> str:
        """Why a request is not answered; empty where it comes from this page or from a person."""
        allowed = self.server.origins
        if f"http://{self.headers.get('Host', '')}" not in allowed:
            return "only requests to this machine's loopback address are answered"
        if self.headers.get("Origin", allowed[0]) not in allowed:
            return "only this page itself is answered, no other origin"
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return "only this page itself is answered, no other site"
        return ""

    def _view(self, query: str) -> None:
        try:
            given = dict(parse_qsl(query, keep_blank_values=True))
            found = self.server.computing.submit(answer, given).result()
        except SigpropError as error:
            return self._send(400, "application/json", as_json({"error": " ".join(str(error).split())}))
        return self._send(200, "application/json", as_json(found))

    def _send(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is written for a request that went well."""
