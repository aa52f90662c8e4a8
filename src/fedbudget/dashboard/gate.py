"""Who may ask: the host a request is meant for, where it comes from, and the token.

A page of another site can make a browser send requests here, and a name it controls can be made to
mean 127.0.0.1. So the Host header must name this machine, a POST must come from this page, and it
must carry the cookie that only this page's visitors have.
"""

import ipaddress
import secrets
import socket
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    # Plotly writes styles into the page; nothing is loaded from elsewhere
    "content-security-policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


@dataclass(frozen=True)
class Gate:
    app: ASGIApp
    token: str
    cookie: str
    host: str
    """the address that is listened on"""
    ask: bool
    """the token is asked for; on loopback any visitor may look"""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        grant = False
        answer: ASGIApp = self.app
        if refusal is not None:
            answer = refusal
        elif scope["method"] == "GET" and scope["path"] == "/":
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
            grant = not self.ask or _same(given, self.token)
            if given:  # the address bar, the history and a bookmark need not keep it
                answer = RedirectResponse("/", 303)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                out = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    out[name] = value
                if not out.get("cache-control"):
                    out["cache-control"] = "no-store"
                if grant:
                    cookie = f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
                    out["set-cookie"] = cookie
            await send(message)

        await answer(scope, receive, guarded)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        method = scope["method"]
        host = headers.get("host", "")
        if not known_host(host, self.host):
            return PlainTextResponse("This is not the host you think it is.\n", 421)
        if method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("GET, HEAD and POST only.\n", 405)
        carried = _same(_cookie(headers.get("cookie", ""), self.cookie), self.token)
        if method == "POST":
            if headers.get("origin", "") not in (f"http://{host}", f"https://{host}"):
                return PlainTextResponse("Only the dashboard's own page may do this.\n", 403)
            if headers.get("sec-fetch-site", "same-origin") != "same-origin":
                return PlainTextResponse("Only the dashboard's own page may do this.\n", 403)
            if not carried:
                return PlainTextResponse("Load the page again first.\n", 403)
        if self.ask and not carried:
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
            if not (method == "GET" and scope["path"] == "/" and _same(given, self.token)):
                return PlainTextResponse(
                    "Open the address that `fedbudget dashboard` printed: it has the token.\n", 403
                )
        return None


def new_token() -> str:
    return secrets.token_urlsafe(32)


def loopback(host: str) -> bool:
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def known_host(header: str, host: str) -> bool:
    """A Host header that means this machine. Its port may be another one: tunnels change it."""
    name = _name(header)
    if loopback(name):
        return True
    if loopback(host):
        return False
    if name == host.strip("[]").lower():
        return True
    try:  # an address cannot be made to mean another one; a name can
        ipaddress.ip_address(name)
    except ValueError:
        return name in {socket.gethostname().lower(), socket.getfqdn().lower()}
    return True


def _name(header: str) -> str:
    """A Host header without its port."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rsplit(":", 1)[0] if text.count(":") == 1 else text


def _cookie(header: str, name: str) -> str:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


def _same(given: str, token: str) -> bool:
    """In a time that does not tell how much of it was right."""
    return secrets.compare_digest(given.encode(errors="replace"), token.encode())
