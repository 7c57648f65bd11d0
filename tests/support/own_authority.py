"""A certificate authority of a test, and a certificate by it for a server on loopback."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path

_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class OwnAuthority:
    """An authority and what it certified."""

    authority: Path
    """Its certificate, for clients: the variable SSL_CERT_FILE names it."""
    context: ssl.SSLContext
    """For the server."""


def own_authority(directory: Path) -> OwnAuthority:
    """Make an authority, with its files in a directory."""
    key, server_key = (
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    name, server_name = _named("authority"), _named("server")
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    is_authority = x509.BasicConstraints(ca=True, path_length=None)
    certificate = _certificate(name, name, key).add_extension(is_authority, critical=True)
    of_server = _certificate(server_name, name, server_key).add_extension(host, critical=False)
    authority, chain = directory / "authority.pem", directory / "server.pem"
    pem = serialization.Encoding.PEM
    authority.write_bytes(certificate.sign(key, hashes.SHA256()).public_bytes(pem))
    private = server_key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    chain.write_bytes(private + of_server.sign(key, hashes.SHA256()).public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    return OwnAuthority(authority, context)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(
    of: x509.Name, by: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(of)
        .issuer_name(by)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )
