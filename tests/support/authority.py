"""A private authority for tests of TLS, and certificates of it, as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)

_SIGNS = x509.KeyUsage(
    **dict.fromkeys(
        (
            *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
            *("key_agreement", "encipher_only", "decipher_only"),
        ),
        False,
    ),
    key_cert_sign=True,
    crl_sign=True,
)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """Signs certificates; `ca` is the file with its own."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.ca = directory / f"{name}.pem"
        certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_SIGNS, critical=True)
        )
        self.ca.write_bytes(self._signed(certificate))

    def issue(
        self,
        name: str,
        *,
        addresses: Sequence[str] = ("127.0.0.1",),
        days: int = 1,
        password: bytes | None = None,
    ) -> tuple[Path, Path]:
        """The files of a certificate for IP addresses, and of its key; over already with negative `days`."""
        key = ec.generate_private_key(ec.SECP256R1())
        known_as = [x509.IPAddress(ipaddress.ip_address(one)) for one in addresses]
        names = [x509.DNSName(name), x509.DNSName("localhost"), *known_as]
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            self._builder(_name(name), key, days)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        )
        cert, secret = self._directory / f"{name}.crt", self._directory / f"{name}.key"
        cert.write_bytes(self._signed(builder))
        encryption = (
            serialization.NoEncryption()
            if password is None
            else serialization.BestAvailableEncryption(password)
        )
        form = serialization.PrivateFormat.PKCS8
        secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))
        return cert, secret

    def server(self, name: str, *addresses: str, days: int = 1) -> ssl.SSLContext:
        """What a server with such a certificate listens with."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.issue(name, addresses=addresses, days=days))
        return context

    def trusting(self) -> ssl.SSLContext:
        """What a client that trusts this authority connects with."""
        return ssl.create_default_context(cafile=str(self.ca))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: int = 1
    ) -> x509.CertificateBuilder:
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        of_issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder(self._name, subject, key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - 10 * DAY)
            .not_valid_after(NOW + days * DAY)
            # Python 3.13 believes no chain without these two and the key usage
            # (RFC 5280 section 4.2.1)
            .add_extension(identifier, critical=False)
            .add_extension(of_issuer, critical=False)
        )

    def _signed(self, builder: x509.CertificateBuilder) -> bytes:
        signed = builder.sign(self._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)
