"""Certificates and keys of a deployment: a certificate authority, a server certificate, and one key per node.

Private keys, and the folders they are in, are readable only by their owner.
"""

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedaf.errors import UserError

CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
SERVER_CERTIFICATE, SERVER_KEY = "server.crt", "server.key"
NODE_KEY = "node.key"

#: Programs on the server connect to the link on loopback, so every server certificate names it.
LOOPBACK = ("127.0.0.1", "localhost")

_AUTHORITY_LIFE = timedelta(days=825)
_SERVER_LIFE = timedelta(days=397)
_CLOCK_SKEW = timedelta(hours=1)  # certificates start earlier, for machines whose clock is slow


def private_directory(path: Path) -> Path:
    """Create a folder if needed, and make it accessible only to its owner."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def make_authority(folder: Path) -> None:
    """Create a certificate authority, valid for 825 days: the public ``ca.crt`` and the private ``ca.key``."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = _name("fedaf deployment authority")
    builder = (
        _builder(name, name, key, _AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(certificates=True), critical=True)
    )
    _write_private(private_directory(folder) / CA_KEY, _pem(key))
    _write(folder / CA_CERTIFICATE, builder.sign(key, hashes.SHA384()).public_bytes(Encoding.PEM))


def make_server_certificate(authority: Path, folder: Path, hosts: Sequence[str]) -> datetime:
    """Create a server certificate and its private key, replacing existing ones.

    Args:
        authority: Folder of the certificate authority that signs it.
        folder: Folder to write ``server.crt`` and ``server.key`` to.
        hosts: Host names or addresses of the server; loopback is added.

    Returns:
        When the certificate expires: after 397 days, or with the authority.

    Raises:
        UserError: If the authority cannot be read or has expired.
    """
    issuer, issuer_key = _read_authority(authority)
    left = issuer.not_valid_after_utc - datetime.now(UTC)
    if left <= timedelta(0):
        raise UserError(
            f"the certificate authority in {authority} expired on {issuer.not_valid_after_utc:%Y-%m-%d}; create a new "
            "deployment with fedaf deploy init, and copy its ca.crt to every site.",
            code="FEDAF-DEPLOY-AUTHORITY-EXPIRED",
        )
    key = ec.generate_private_key(ec.SECP384R1())
    names = x509.SubjectAlternativeName([_alternative(host) for host in dict.fromkeys([*hosts, *LOOPBACK])])
    certificate = (
        _builder(_name("fedaf server"), issuer.subject, key, min(_SERVER_LIFE, left))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .add_extension(names, critical=False)
        .sign(issuer_key, hashes.SHA384())
    )
    _write_private(private_directory(folder) / SERVER_KEY, _pem(key))
    _write(folder / SERVER_CERTIFICATE, certificate.public_bytes(Encoding.PEM))
    return certificate.not_valid_after_utc


def hosts_of(certificate: Path) -> list[str]:
    """Return the host names and addresses in a server certificate."""
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise UserError(
            f"{certificate} is not a readable certificate with host names ({error}); restore the one that "
            "fedaf deploy init wrote.",
            code="FEDAF-DEPLOY-CERTIFICATE-UNREADABLE",
        ) from error
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def make_node_key(file: Path) -> Path:
    """Create the key by which a node proves its identity, in the format of ``ssh-keygen -t ecdsa -b 384``.

    Returns:
        The file of the public key, which the server must have.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    private_directory(file.parent)
    _write_private(file, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = file.with_suffix(".pub")
    _write(public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return public


def _read_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate((folder / CA_CERTIFICATE).read_bytes())
        key = load_pem_private_key((folder / CA_KEY).read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"{folder} holds no readable certificate authority ({CA_CERTIFICATE} and {CA_KEY}): {error}; restore the "
            "files that fedaf deploy init wrote.",
            code="FEDAF-DEPLOY-AUTHORITY-UNREADABLE",
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(
            f"{folder / CA_KEY} is not an elliptic curve key, so fedaf deploy init did not write it; restore the one "
            "it wrote.",
            code="FEDAF-DEPLOY-AUTHORITY-UNREADABLE",
        )
    return certificate, key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, life: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certificates,
        key_cert_sign=certificates,
        crl_sign=certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write_private(path: Path, content: bytes) -> None:
    """Write a file that others can never read, not even while it is being written."""
    _write(path, content, mode=0o600)


def _write(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
        file.write(content)
