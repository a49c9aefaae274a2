"""Certificates with their keys into TLS contexts, without a private key ever touching a disk."""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator


class UnusableCertificate(ValueError):
    """A certificate and key that TLS cannot be made with; the message says why, and nothing of the key."""


def load_certificate(context: ssl.SSLContext, pem: bytes) -> None:
    """Give a context the certificate chain and the key that *pem* holds."""

    def no_password() -> str:  # the default would ask for one at the terminal
        raise UnusableCertificate("the key is encrypted; give one without a password")

    with file_in_memory(pem) as path:
        try:
            context.load_cert_chain(path, password=no_password)
        except ssl.SSLError as error:
            raise UnusableCertificate(error.reason or "not a certificate and its key") from None


@contextlib.contextmanager
def file_in_memory(content: bytes) -> Iterator[str]:
    """The ssl module reads certificates from files only; this one is in memory where the system can have such."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
    else:
        with tempfile.NamedTemporaryFile() as file:  # only the owner may read it
            file.write(content)
            file.flush()
            yield file.name
