"""Certificates and keys of a deployment: which hosts they are for, how long they are valid, who can read them."""

import ssl
import stat
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from support.errors import raises

pytest.importorskip("flwr", reason="the extra flower is not installed")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedaf.deploy.credentials import hosts_of, make_authority, make_node_key, make_server_certificate, private_directory


@pytest.fixture
def folder(tmp_path):
    make_authority(tmp_path / "authority")
    make_server_certificate(tmp_path / "authority", tmp_path / "server", ["fl.example.org", "192.0.2.7", "2001:db8::1"])
    return tmp_path


def shakes_hands(authority, server, name: str) -> bool:
    """Whether a client that trusts an authority accepts a server under a host name: a TLS handshake in memory."""
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(server / "server.crt", server / "server.key")
    here = ssl.create_default_context(cafile=authority / "ca.crt")
    here.verify_flags |= ssl.VERIFY_X509_STRICT
    client = here.wrap_bio(ours, theirs, server_hostname=name)
    link = there.wrap_bio(theirs, ours, server_side=True)
    for _ in range(3):
        for end in (client, link):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return client.version() is not None


@pytest.mark.parametrize("name", ["fl.example.org", "192.0.2.7", "2001:db8::1", "127.0.0.1", "localhost"])
def test_a_server_is_accepted_under_its_names_and_on_loopback(folder, name):
    assert shakes_hands(folder / "authority", folder / "server", name)


def test_a_server_is_not_accepted_under_another_name(folder):
    assert not shakes_hands(folder / "authority", folder / "server", "other.example.org")


def test_a_server_is_not_accepted_by_another_authority(folder):
    make_authority(folder / "other")
    assert not shakes_hands(folder / "other", folder / "server", "fl.example.org")


def test_a_server_certificate_cannot_make_certificates_and_an_authority_only_its_own(folder):
    ours, theirs = (
        x509.load_pem_x509_certificate((folder / name).read_bytes()).extensions
        for name in ("authority/ca.crt", "server/server.crt")
    )
    assert ours.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(ca=True, path_length=0)
    assert not theirs.get_extension_for_class(x509.BasicConstraints).value.ca


def test_nothing_is_valid_for_more_than_825_days_and_a_server_no_longer_than_its_authority(folder):
    ends = {}
    for name in ("authority/ca.crt", "server/server.crt"):
        certificate = x509.load_pem_x509_certificate((folder / name).read_bytes())
        ends[name] = certificate.not_valid_after_utc
        assert certificate.not_valid_before_utc < datetime.now(UTC) < certificate.not_valid_after_utc
        assert certificate.not_valid_after_utc - datetime.now(UTC) <= timedelta(days=825)
    assert ends["server/server.crt"] <= ends["authority/ca.crt"]


def test_private_keys_and_their_folders_are_for_their_owner_alone(folder):
    make_node_key(folder / "site" / "node.key")
    for key in ("authority/ca.key", "server/server.key", "site/node.key"):
        assert stat.S_IMODE((folder / key).stat().st_mode) == 0o600
        assert stat.S_IMODE((folder / key).parent.stat().st_mode) == 0o700


def test_a_private_directory_is_private_though_it_was_there_before(tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    assert stat.S_IMODE(private_directory(tmp_path / "open").stat().st_mode) == 0o700


def test_a_node_key_is_what_ssh_keygen_makes(tmp_path):
    public = make_node_key(tmp_path / "node.key")
    private = load_ssh_private_key((tmp_path / "node.key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    assert load_ssh_public_key(public.read_bytes()) == private.public_key()
    shown = subprocess.run(["ssh-keygen", "-lf", public], capture_output=True, text=True, check=True).stdout
    assert shown.startswith("384 ")
    assert "ECDSA" in shown


def test_a_renewed_certificate_is_another_one_for_the_same_names(folder):
    server = folder / "server"
    before, names = (server / "server.crt").read_bytes(), hosts_of(server / "server.crt")
    make_server_certificate(folder / "authority", server, names)
    assert (server / "server.crt").read_bytes() != before
    assert sorted(hosts_of(server / "server.crt")) == sorted(names)
    assert set(names) == {"fl.example.org", "192.0.2.7", "2001:db8::1", "127.0.0.1", "localhost"}


def test_a_folder_without_an_authority_is_named(tmp_path):
    with raises("FEDAF-DEPLOY-AUTHORITY-UNREADABLE") as caught:
        make_server_certificate(tmp_path, tmp_path / "server", ["localhost"])
    assert str(tmp_path) in str(caught.value)
