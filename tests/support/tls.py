"""Servers with TLS: their certificate, and what their command line says of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from .servers import redis_server_binary


class Certificate(NamedTuple):
    """A certificate for this machine that nobody but itself has signed, and its key."""

    path: Path
    key: Path

    @classmethod
    def make(cls, folder: Path, names: str = "DNS:localhost,IP:127.0.0.1") -> Certificate:
        """A new one for these names, in this folder. Without openssl the test is skipped."""
        if shutil.which("openssl") is None:
            pytest.skip("no openssl on this machine")
        made = cls(folder / "certificate.pem", folder / "key.pem")
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
                *("ec_paramgen_curve:P-256", "-nodes", "-keyout", str(made.key)),
                *("-out", str(made.path), "-days", "2"),
                *("-subj", "/CN=localhost", "-addext", f"subjectAltName={names}"),
            ],
            check=True,
            capture_output=True,
        )
        return made

    def arguments(self, clients: str) -> tuple[str, ...]:
        """More of a server's command line. Without TLS in the server the test is skipped.

        Args:
            clients: "yes" if they must show a certificate, too, else "no".
        """
        # It ends at once: there is no certificate, or no TLS.
        tried = [redis_server_binary(), "--tls-port", "1", "--tls-cert-file", "/nowhere"]
        done = subprocess.run(tried, capture_output=True, text=True, check=False)
        if re.search("Bad directive|Failed finding TLS", done.stdout + done.stderr):
            pytest.skip("this server has no TLS")
        return (
            *("--tls-cert-file", str(self.path), "--tls-key-file", str(self.key)),
            *("--tls-ca-cert-file", str(self.path), "--tls-auth-clients", clients),
        )
