"""Certificates and keys of a deployment: a certificate authority, a server certificate, and one key per node.

Private keys, and the folders they are in, are readable only by their owner.
"""

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
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
    _issue(folder / CA_CERTIFICATE, folder / CA_KEY, "fedaf deployment authority", _AUTHORITY_LIFE)


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
        what = f"the certificate authority in {authority} expired on {issuer.not_valid_after_utc:%Y-%m-%d}"
        remedy = "create a new deployment with fedaf deploy init, and copy its ca.crt to every site"
        raise UserError(f"{what}; {remedy}.", code="FEDAF-DEPLOY-AUTHORITY-EXPIRED")
    extensions = (
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
        x509.SubjectAlternativeName([_alternative(host) for host in dict.fromkeys([*hosts, *LOOPBACK])]),
    )
    files, life = (folder / SERVER_CERTIFICATE, folder / SERVER_KEY), min(_SERVER_LIFE, left)
    certificate = _issue(*files, "fedaf server", life, extensions, issuer=(issuer.subject, issuer_key))
    return certificate.not_valid_after_utc


def hosts_of(certificate: Path) -> list[str]:
    """Return the host names and addresses in a server certificate."""
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        what = f"{certificate} is not a readable certificate with host names ({error}); restore it."
        raise UserError(what, code="FEDAF-DEPLOY-CERTIFICATE-UNREADABLE") from error
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def make_node_key(file: Path) -> Path:
    """Create the key by which a node proves its identity, in the format of ``ssh-keygen -t ecdsa -b 384``.

    Returns:
        The file of the public key, which the server must have.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(file, key, PrivateFormat.OpenSSH)
    public = file.with_suffix(".pub")
    _write(public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return public


def _read_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate((folder / CA_CERTIFICATE).read_bytes())
        key = serialization.load_pem_private_key((folder / CA_KEY).read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError(f"{CA_KEY} is not an elliptic curve key")
    except (OSError, ValueError, TypeError) as error:
        what = f"{folder} holds no readable certificate authority ({CA_CERTIFICATE} and {CA_KEY}): {error}"
        remedy = "restore the files that fedaf deploy init wrote"
        raise UserError(f"{what}; {remedy}.", code="FEDAF-DEPLOY-AUTHORITY-UNREADABLE") from error
    return certificate, key


def _issue(
    file: Path,
    key_file: Path,
    common_name: str,
    life: timedelta,
    extensions: Sequence[x509.ExtensionType] = (),
    issuer: tuple[x509.Name, ec.EllipticCurvePrivateKey] | None = None,
) -> x509.Certificate:
    """Write a new key and its certificate, signed by an issuer or, for an authority, by itself."""
    key, is_authority = ec.generate_private_key(ec.SECP384R1()), issuer is None
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    issuer_name, issuer_key = issuer or (subject, key)
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), critical=True)
        .add_extension(_usage(is_authority), critical=True)
    )
    for extension in (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), *extensions):
        builder = builder.add_extension(extension, critical=False)
    certificate = builder.sign(issuer_key, hashes.SHA384())
    _write_private(key_file, key, PrivateFormat.PKCS8)
    _write(file, certificate.public_bytes(Encoding.PEM))
    return certificate


def _usage(is_authority: bool) -> x509.KeyUsage:
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
        **dict.fromkeys(unused, False),
    )


def is_address(host: str) -> bool:
    """Return whether a host is given by its IP address."""
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def _alternative(host: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(host)) if is_address(host) else x509.DNSName(host)


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, kind: PrivateFormat) -> None:
    """Write a key to a file that others can never read, not even while it is being written."""
    private_directory(path.parent)
    _write(path, key.private_bytes(Encoding.PEM, kind, NoEncryption()), mode=0o600)


def _write(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
        file.write(content)
