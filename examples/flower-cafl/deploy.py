"""A deployment on this machine: a SuperLink with TLS, SuperNodes with keys of their own, one run.

    python deploy.py --nodes 3 --folder deployment -c "rounds=3"

It makes certificates and keys, starts a SuperLink and the SuperNodes, registers the nodes' keys,
starts the run and stops everything when it ends. On several machines the same commands are run by
hand: docs/flower.md has them one by one.
"""

import argparse
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

APP = Path(__file__).parent
BIN = Path(sys.executable).parent


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _write_key(key: ec.EllipticCurvePrivateKey, file: Path, form: str) -> None:
    kind = {
        "pem": serialization.PrivateFormat.PKCS8,
        "openssh": serialization.PrivateFormat.OpenSSH,
    }[form]
    body = key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())
    file.touch(mode=0o600)
    file.write_bytes(body)


def make_certificates(folder: Path, host: str = "127.0.0.1") -> None:
    """ca.crt, and server.crt with server.key for an address; each kept 30 days."""
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    authority, server = (
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP384R1()),
    )

    def certificate(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(_name(subject))
            .issuer_name(_name("fedbudget CA"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=30))
        )

    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    usage = x509.KeyUsage(*(True, *[False] * 4, True, True, False, False))
    root = (
        certificate("fedbudget CA", authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), False)
        .sign(authority, hashes.SHA384())
    )
    names = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address(host)), x509.DNSName("localhost")]
    )
    own = (
        certificate(host, server)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(issuer, critical=False)
        .sign(authority, hashes.SHA384())
    )
    (folder / "ca.crt").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (folder / "server.crt").write_bytes(own.public_bytes(serialization.Encoding.PEM))
    _write_key(server, folder / "server.key", "pem")


def make_node_key(folder: Path, name: str) -> Path:
    """A node's private key and, beside it, the public one to register."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    _write_key(key, folder / name, "openssh")
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    (folder / f"{name}.pub").write_bytes(public + b"\n")
    return folder / name


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Deployment:
    """The processes of one SuperLink and its SuperNodes, each a group of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        }

    def __enter__(self) -> "Deployment":
        make_certificates(self.folder / "certificates")
        home = self.folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n\n[superlink.here]\n'
            f'address = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.folder}/certificates/ca.crt"\n'
        )
        try:
            self.start_link()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for name in list(self.processes):
            self.stop(name)

    def start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self.environment,
                start_new_session=True,
            )

    def start_link(self) -> None:
        keys = self.folder / "certificates"
        self.start(
            *("superlink", "flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--ssl-ca-certfile", f"{keys}/ca.crt", "--ssl-certfile", f"{keys}/server.crt"),
            *("--ssl-keyfile", f"{keys}/server.key", "--enable-supernode-auth"),
            *("--disable-runtime-dependency-installation",),
            *("--database", str(self.folder / "state.db")),
        )
        self.wait_for_port()

    def wait_for_port(self, seconds: float = 120) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.2)
        raise TimeoutError(f"no SuperLink on port {self.port}; see {self.folder}/superlink.log")

    def register(self, public_key: Path) -> None:
        self.flwr("supernode", "register", str(public_key), "here")

    def start_node(
        self, number: int, config: str = "", key: Path | None = None, ca: Path | None = None
    ) -> None:
        """A SuperNode; its key is made and registered unless one is given."""
        if key is None:
            key = self.folder / "keys" / f"node-{number}"
            if not key.exists():
                make_node_key(self.folder / "keys", key.name)
                self.register(key.with_suffix(".pub"))
        about = f'partition-id={number} state="{self.folder}/state-{number}" {config}'.strip()
        self.start(
            *(f"node-{number}", "flower-supernode", "--superlink", f"127.0.0.1:{self.port}"),
            *("--root-certificates", str(ca or self.folder / "certificates" / "ca.crt")),
            *("--auth-supernode-private-key", str(key), "--node-config", about),
            *("--port", str(free_port())),
        )

    def flwr(self, *arguments: str, check: bool = True) -> str:
        """A command of Flower's own; returns what it printed."""
        done = subprocess.run(
            ["flwr", *arguments],
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if check and done.returncode:
            raise RuntimeError(f"flwr {' '.join(arguments)}: {done.stdout}")
        return done.stdout

    def run(self, changes: str = "", app: Path = APP, name: str = "run") -> None:
        """Start a run; its log is in the folder, under the run's name."""
        more = ("-c", changes) if changes else ()
        self.start(name, "flwr", "run", str(app), "here", "--stream", *more)

    def wait(self, name: str = "run", seconds: float | None = None) -> int:
        return self.processes[name].wait(seconds)

    def kill(self, name: str) -> None:
        """As a power cut would: the whole group, at once."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self, name: str) -> None:
        process = self.processes.pop(name)
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(10)
            except subprocess.TimeoutExpired:
                continue
            except ProcessLookupError:
                break
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("deployment"))
    parser.add_argument("-c", "--changes", default="", help="config keys, as in flwr run -c")
    given = parser.parse_args()
    out = given.folder.absolute() / "run"
    with Deployment(given.folder) as here:
        for number in range(given.nodes):
            here.start_node(number)
        fleet = f"data.clients={given.nodes} train.cohort={given.nodes}"
        here.run(f'out="{out}" {fleet} {given.changes}')
        code = here.wait()
    print((given.folder / "run.log").read_text())
    sys.exit(code)


if __name__ == "__main__":
    main()
