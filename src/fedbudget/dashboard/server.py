"""Serves the dashboard until Ctrl-C."""

import asyncio
import errno
import os
import signal
import socket
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import uvicorn
from uvicorn.server import HANDLED_SIGNALS

from fedbudget.dashboard.app import build
from fedbudget.dashboard.gate import Gate, loopback, new_token
from fedbudget.dashboard.watch import Watch
from fedbudget.errors import UserError
from fedbudget.terminal import say


class Server(uvicorn.Server):
    """Ends when it is told, from before its address is shown until the process is gone; told once
    more, at once: a page's request may hang as long as its disk does."""

    def __init__(self, gate: Gate, watch: Watch) -> None:
        # no access log: an address may hold the token
        super().__init__(uvicorn.Config(gate, log_level="error", access_log=False, ws="none"))
        self.watch = watch

    def listen_to_signals(self) -> None:
        """In place of uvicorn, which does so only once it runs, and raises them again at its end:
        in between they would break off whatever is on the way. Also where a shell has told this
        process to ignore them: whoever reads the address may end the server."""
        for number in HANDLED_SIGNALS:
            signal.signal(number, self.handle_exit)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(130)  # it has nothing of its own to write
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # they are ours

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self.watch.close()  # the event streams would keep it waiting
        await super().shutdown(sockets)


def serve(root: Path, host: str, port: int, open_browser: bool, control: bool, token: bool) -> None:
    """`control` and `token` matter where they are not settled: on loopback runs can be controlled
    and no token is asked for; elsewhere it is, and they can be controlled only when told."""
    if not root.is_dir():
        raise UserError(
            f"{root}: no such folder; a run makes it: fedbudget run fedavg --out {root}/a"
        )
    near = loopback(host)
    listening = listen(host, port)
    number = listening.getsockname()[1]
    secret = new_token()
    ask = token or not near
    app = build(root.resolve(), str(root), control or near)
    gate = Gate(app, secret, f"fedbudget_{number}", host, ask)
    shown = host if host not in ("0.0.0.0", "::", "") else socket.gethostname()
    url = f"http://{f'[{shown}]' if ':' in shown else shown}:{number}/"
    address = f"{url}?token={secret}" if ask else url
    server = Server(gate, app.state.watch)
    server.listen_to_signals()
    try:
        say(f"fedbudget dashboard of {root}: {address} (Ctrl-C ends it)")
        if not near:
            say("anyone with this address can see the runs; it is sent without encryption")
        if open_browser:
            webbrowser.open(address)
        asyncio.run(server.serve([listening]))
    finally:
        listening.close()


def listen(host: str, port: int) -> socket.socket:
    """A socket at that address; port 0 is any free one."""
    try:
        kind, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(where[:2], family=kind)
    except socket.gaierror:
        raise UserError(f"--host {host}: no such address") from None
    except OverflowError:
        raise UserError(f"--port {port}: a port is between 0 and 65535") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(
                f"port {port} is taken; choose another with --port, or --port 0 for any free one"
            ) from None
        raise UserError(f"{host}:{port}: cannot listen there: {error.strerror}") from None
