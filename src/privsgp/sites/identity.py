"""A site's identity: secret keys, and the public card for others.

An Ed25519 key *is* the site: it signs agreements and messages, and endorses all other keys. gRPC's TLS takes no Ed25519
certificates. So the site also has a certificate authority: a P-256 key, whose certificate is in the card. It issues the
certificate that TLS shows, and renews it (`rotate`) without any work at other sites. An X25519 key encrypts data that
only two sites may read.

Guarantee: the private halves are in files that their owner alone can read, in a folder that their owner alone can
enter, and encrypted if PRIVSGP_PASSPHRASE was set when they were made; nothing here prints or sends them.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import os
import re
import stat
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from pydantic import Field

from privsgp.errors import Refused
from privsgp.files import loaded, read_bytes, replace, shaped, write_private
from privsgp.options import Options
from privsgp.outside import Hash, Signature
from privsgp.sites.canonical import canonical

if TYPE_CHECKING:
    from pathlib import Path

CARD = "privsgp-card"
_LONGEST = 2**16  # bytes of a card
_MOST_PASSPHRASE = 1023  # bytes
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):(\d{1,5})")
_PROXY = re.compile(r"http://[^\s/]+:\d{1,5}/?")
_DAY = dt.timedelta(days=1)
_AUTHORITY_DAYS, _TLS_DAYS = 3650, 90
_FILES = ("identity.key", "authority.key", "exchange.key", "tls.key")  # private


class Card(Options):
    """A site's card: the public halves of its keys, its name and its address, endorsed by the site."""

    format: str
    version: int
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
    identity: Hash
    exchange: Hash
    authority: Annotated[str, Field(max_length=4096)]  # the certificate of the site's own authority, in PEM
    address: Annotated[str, Field(max_length=300)] | None  # HOST:PORT, None where the site only dials out
    endorsement: Signature

    @classmethod
    def read(cls, path: Path) -> Card:
        """Read and check a card file."""
        try:
            text = read_bytes(path, _LONGEST)
        except OSError as error:
            raise Refused(f"cannot read the card {path}: {error.strerror}", "name a NAME.card file") from error
        card = shaped(loaded(text, str(path)), Card, str(path))
        card.refuse_forged(str(path))
        return card

    def refuse_forged(self, where: str) -> None:
        """Refuse a card that its site did not endorse.

        Guarantee: name, address and keys are those that the holder of the identity key signed.
        """
        if (self.format, self.version) != (CARD, 1):
            raise Refused(f"{where} has format {self.format!r}: it is no card", "ask the site for its `site card`")
        if self.address is not None and not is_address(self.address):
            raise Refused(
                f"{where}: its address {self.address[:80]!r} is not HOST:PORT", "ask the site for its card again"
            )
        endorsed = canonical(self.model_dump(exclude={"endorsement"}))
        if not (self.signed(b"card", endorsed, self.endorsement) and self._has_authority()):
            raise Refused(
                f"{where}: its keys are not endorsed by the identity {self.fingerprint}",
                "it was changed: ask the site for its card again, and compare fingerprints by telephone",
            )

    @cached_property
    def fingerprint(self) -> str:
        """The short form that people compare by telephone."""
        return fingerprint(bytes.fromhex(self.identity))

    @property
    def authority_pem(self) -> bytes:
        """The certificate of the site's own authority, as TLS wants it."""
        return self.authority.encode()

    @cached_property
    def certificate(self) -> x509.Certificate:
        """The same, read."""
        return x509.load_pem_x509_certificate(self.authority_pem)

    def signed(self, purpose: bytes, text: bytes, signature: str) -> bool:
        """Tell whether this, in hexadecimal digits, is the site's signature of a text for a purpose."""
        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.identity))
            key.verify(bytes.fromhex(signature), _to_sign(purpose, text))
        except (InvalidSignature, ValueError):
            return False
        return True

    def issued(self, certificate: x509.Certificate) -> bool:
        """Tell whether a TLS certificate was issued by this site's authority, and for this site."""
        try:
            certificate.verify_directly_issued_by(self.certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return [name.value for name in names] == [self.name]

    def _has_authority(self) -> bool:
        """Tell whether the card's certificate is that of one P-256 authority with the site's name."""
        try:
            certificate = self.certificate
        except ValueError:
            return False
        key, names = certificate.public_key(), certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return (
            self.authority_pem == _pem(certificate)  # what else it holds would be trusted too, or break the store
            and isinstance(key, ec.EllipticCurvePublicKey)
            and isinstance(key.curve, ec.SECP256R1)
            and [name.value for name in names] == [f"{self.name} authority"]
        )

    def write(self, path: Path) -> None:
        """Write the card file."""
        replace(path, lambda temporary: temporary.write_bytes(canonical(self.model_dump()) + b"\n"))


def fingerprint(public: bytes) -> str:
    """Return 120 bits of a key's SHA-256 in groups that can be read out: letters and digits without 0, 1, 8, 9."""
    text = base64.b32encode(hashlib.sha256(b"privsgp/fingerprint/" + public).digest())[:24].decode()
    return "-".join(text[at : at + 4] for at in range(0, 24, 4))


def _to_sign(purpose: bytes, text: bytes) -> bytes:
    """Return what is signed: a signature for one purpose is none for another."""
    return b"privsgp/" + purpose + b"/1\n" + text


class Site:
    """The site whose keys are in a home folder."""

    def __init__(self, home: Path) -> None:
        self.home = home

    @classmethod
    def create(
        cls, home: Path, name: str, *, address: str | None, listen: str | None = None, proxy: str | None = None
    ) -> Site:
        """Make keys, a certificate and a card; refuse a folder that has some already."""
        if not _NAME.fullmatch(name):
            raise Refused(f"--name {name} names no site", "take up to 31 small letters, digits and '-', a letter first")
        for option, value in (("address", address), ("listen", listen)):
            if value is not None and not is_address(value):
                raise Refused(f"--{option} {value} is no address", "write HOST:PORT")
        if proxy is not None and not _PROXY.fullmatch(proxy):
            raise Refused(f"--proxy {proxy} is no proxy's address", "write http://HOST:PORT; it must allow CONNECT")
        if (home / "identity.key").exists():
            raise Refused(f"{home} already has a site's keys", "see `privsgp site show`, or choose another --home")
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.chmod(0o700)
        site = cls(home)
        identity, authority, exchange = Ed25519PrivateKey.generate(), _p256(), X25519PrivateKey.generate()
        for file, key in (("authority.key", authority), ("exchange.key", exchange)):
            write_private(home / file, private_pem(key))
        certificate = _certificate(
            f"{name} authority", authority, authority, f"{name} authority", _AUTHORITY_DAYS, ca=True
        )
        write_private(home / "site.json", canonical({"name": name, "listen": listen or address, "proxy": proxy}))
        values = {"format": CARD, "version": 1, "name": name, "address": address}
        values["identity"] = identity.public_key().public_bytes_raw().hex()
        values["exchange"] = exchange.public_key().public_bytes_raw().hex()
        values["authority"] = _pem(certificate).decode()
        endorsement = identity.sign(_to_sign(b"card", canonical(values))).hex()
        Card.model_validate(values | {"endorsement": endorsement}).write(home / "own.card")
        site.rotate()
        write_private(home / "identity.key", private_pem(identity))  # last: with it there is a site
        return site

    @classmethod
    def open(cls, home: Path) -> Site:
        """Return the site that lives in a folder; refuse keys that others could read."""
        site = cls(home)
        if not (home / "identity.key").exists():
            raise Refused(
                f"{home} does not have a site's keys", "make one with `privsgp site init`, or name its --home"
            )
        for path in (home, *(home / file for file in _FILES)):
            if not path.exists():
                raise Refused(f"{path} is missing", "restore the site's identity folder from a copy")
            status = path.stat()
            if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
                raise Refused(
                    f"{path} is open to others (mode {stat.S_IMODE(status.st_mode):o})",
                    "nobody else may read these keys: chmod -R go= the folder, and ask who could read them until now",
                )
        return site

    @cached_property
    def card(self) -> Card:
        """The card for others."""
        return Card.read(self.home / "own.card")

    @property
    def name(self) -> str:
        """The site's name."""
        return self.card.name

    @property
    def listen(self) -> str | None:
        """HOST:PORT to listen at; None for a site that only dials out."""
        return None if self.card.address is None else self._settings.listen

    @property
    def proxy(self) -> str | None:
        """The HTTP CONNECT proxy through which the site dials."""
        return self._settings.proxy

    @cached_property
    def _settings(self) -> _SiteFile:
        path = self.home / "site.json"
        return shaped(loaded(read_bytes(path, _LONGEST), str(path)), _SiteFile, str(path))

    def sign(self, purpose: bytes, text: bytes) -> bytes:
        """Sign a text for a purpose with the identity key."""
        return self._identity.sign(_to_sign(purpose, text))

    def exchange(self, card: Card) -> bytes:
        """Return the secret that this site and another have in common: X25519 of the two cards' keys."""
        own: X25519PrivateKey = load_key(self.home / "exchange.key", X25519PrivateKey)
        try:
            return own.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(card.exchange)))
        except ValueError as error:
            raise Refused(
                f"the exchange key on the card of {card.name} is invalid", "ask the site for a card"
            ) from error

    @cached_property
    def _identity(self) -> Ed25519PrivateKey:
        key: Ed25519PrivateKey = load_key(self.home / "identity.key", Ed25519PrivateKey)
        return key

    def tls(self) -> tuple[bytes, bytes]:
        """Return the key and certificate that TLS shows, in PEM; read anew, since they may have been renewed.

        A certificate without its key would stop all connections: both are in one file, written whole.
        """
        path = self.home / "tls.key"
        both = read_bytes(path, _LONGEST)
        key = load_key(path, ec.EllipticCurvePrivateKey)
        return private_pem(key, b""), both[both.index(b"-----BEGIN CERTIFICATE-----") :]

    @property
    def certificate(self) -> x509.Certificate:
        """The certificate that TLS shows now."""
        return x509.load_pem_x509_certificate(self.tls()[1])

    def rotate(self, days: float = _TLS_DAYS) -> None:
        """Make a new TLS key and certificate under the same identity; peers accept them at once."""
        name, key = self.card.name, _p256()
        authority = load_key(self.home / "authority.key", ec.EllipticCurvePrivateKey)
        certificate = _certificate(name, key, authority, f"{name} authority", days)
        write_private(self.home / "tls.key", private_pem(key) + _pem(certificate))


class _SiteFile(Options):
    name: str
    listen: str | None
    proxy: str | None


def is_address(text: str) -> bool:
    """Tell whether a text is HOST:PORT."""
    found = _ADDRESS.fullmatch(text)
    return found is not None and int(found[2]) < 2**16


def tls_name(name: str) -> str:
    """Return the name that a site's TLS certificate is for: it says who is there, not at which address."""
    return f"{name}.sites.privsgp.internal"


def _passphrase() -> bytes:
    """Return the passphrase of this user's key files; empty where the variable is not set: they have none."""
    given = os.environb.get(b"PRIVSGP_PASSPHRASE")
    if given is not None and not 0 < len(given) <= _MOST_PASSPHRASE:
        raise Refused(
            f"PRIVSGP_PASSPHRASE has {len(given)} bytes: a passphrase has 1 to {_MOST_PASSPHRASE}",
            "write a passphrase into it, or unset it for keys without one",
        )
    return given or b""


def load_key(path: Path, kind: type[Any]) -> Any:  # noqa: ANN401 - a key of that kind
    """Return the private key in a file, which has to be of a kind, and encrypted if there is a passphrase."""
    passphrase = _passphrase()
    try:
        key = serialization.load_pem_private_key(read_bytes(path, _LONGEST), passphrase or None)
    except TypeError:
        what = "is not encrypted, and PRIVSGP_PASSPHRASE is set" if passphrase else "is encrypted"
        remedy = "unset it, or make a new site" if passphrase else "set PRIVSGP_PASSPHRASE to its passphrase"
        raise Refused(f"{path} {what}", remedy) from None
    except ValueError:
        key = None
    if not isinstance(key, kind):
        wrong = "PRIVSGP_PASSPHRASE does not open it, or it is damaged" if passphrase else "it is damaged"
        raise Refused(
            f"{path} is no {kind.__name__}: {wrong}", f"correct the passphrase, or put {path.parent} back as it was"
        )
    return key


def _p256() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(
    key: Ed25519PrivateKey | X25519PrivateKey | ec.EllipticCurvePrivateKey, passphrase: bytes | None = None
) -> bytes:
    """Return a private key as files hold it: encrypted with a passphrase, by default PRIVSGP_PASSPHRASE."""
    secret = _passphrase() if passphrase is None else passphrase
    encryption = serialization.BestAvailableEncryption(secret) if secret else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, issuer_key: ec.EllipticCurvePrivateKey, issuer: str, days: float,
    *, ca: bool = False,
) -> x509.Certificate:  # fmt: skip
    """Return a certificate, valid since yesterday: clocks of sites differ."""
    now = dt.datetime.now(dt.UTC)
    usage = x509.KeyUsage(
        digital_signature=not ca, key_cert_sign=ca, crl_sign=ca, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    made = (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(_named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - max(_DAY, -2 * days * _DAY))
        .not_valid_after(now + days * _DAY)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(usage, critical=True)
    )
    if not ca:
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(tls_name(name))]), critical=False)
        made = made.add_extension(x509.ExtendedKeyUsage(both), critical=False)
    return made.sign(issuer_key, hashes.SHA256())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
