"""A certificate authority that a company may already have: RSA, with an intermediate that signs for servers."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


def certify(server: Path, everywhere: Sequence[Path]) -> None:
    """Write ``server.crt`` and ``server.key`` for 127.0.0.1, and ``ca.crt`` into all folders."""
    root, lower, own = (rsa.generate_private_key(65537, 2048) for _ in range(3))
    ca = signed("the firm", root, "the firm", root, authority=True)
    between = signed("its servers", lower, "the firm", root, authority=True)
    leaf = signed("fl", own, "its servers", lower, authority=False)
    for folder in everywhere:
        (folder / "ca.crt").write_bytes(pem(ca))
    (server / "server.crt").write_bytes(pem(leaf) + pem(between))
    key = own.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    (server / "server.key").touch(mode=0o600)
    (server / "server.key").write_bytes(key)


def signed(
    name: str, key: rsa.RSAPrivateKey, by: str, issuer: rsa.RSAPrivateKey, *, authority: bool
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, by)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if not authority:
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(issuer, hashes.SHA256())


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)
