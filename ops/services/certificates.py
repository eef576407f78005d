"""Certificates of the secure local services: an authority of their own and what it signs.

Role: `cryptography` is the library, for its PKCS#8 keys (what the broker reads) and its explicit dates and names (what
tests of refused certificates need). The key of the authority lives in this process only, so nothing more can be
signed later.
Data out: PEM bytes. Private keys are unencrypted: their files are for the owner alone.
Follows RFC 5280: a version 3 certificate with subject alternative names, which is what clients check.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_BACKDATED = datetime.timedelta(hours=1)  # clocks differ
_VALID = datetime.timedelta(days=3650)


@dataclass(frozen=True)
class Issued:
    """A certificate with its key, as PEM."""

    certificate: bytes
    key: bytes  # PKCS#8


class Authority:
    """A certificate authority that lives as long as this object."""

    def __init__(self, name: str = "rlweave local authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        now = datetime.datetime.now(datetime.UTC)
        builder = _builder(self._name, key=self._key, valid=(now - _BACKDATED, now + _VALID))
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.issuer_name(self._name).add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        self._certificate = builder.add_extension(usage, True).sign(self._key, hashes.SHA256())

    @property
    def certificate(self) -> bytes:
        """PEM certificate to check others against."""
        return self._certificate.public_bytes(Encoding.PEM)

    def issue(self, name: str, *, hosts: tuple[str, ...], not_after: datetime.datetime | None = None) -> Issued:
        """A certificate for servers at `hosts` (names or addresses), and for clients.

        Args:
            name: common name.
            hosts: what may stand in the address of the server.
            not_after: end of its life; ten years from now unless given.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        end = now + _VALID if not_after is None else not_after
        builder = _builder(_name(name), key=key, valid=(min(now, end) - _BACKDATED, end)).issuer_name(self._name)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), False)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = builder.add_extension(issuer, False).sign(self._key, hashes.SHA256())
        return Issued(
            certificate=certificate.public_bytes(Encoding.PEM),
            key=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )


def _builder(
    subject: x509.Name, *, key: ec.EllipticCurvePrivateKey, valid: tuple[datetime.datetime, datetime.datetime]
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(valid[0])
        .not_valid_after(valid[1])
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
