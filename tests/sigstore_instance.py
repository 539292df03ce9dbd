"""`SigstoreInstance`: a sigstore of the tests' own, whose signatures sigstore-python verifies.

A certificate authority, a log of certificates and a log of signatures, each a key in memory. It
signs what it is given for whatever identity it is told, as Fulcio and Rekor would after a login.
What sigstore-python checks offline is real: the chain, the timestamps of both logs, the proof of
inclusion, the certificate's identity and issuer, and the envelope's signature.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import struct
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NOW = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
STATEMENT_MEDIA = "application/vnd.in-toto+json"
_LOG = "log.of.tests"
_SCT_LIST = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_ISSUER = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_ONE_TIME = {"validFor": {"start": "2025-01-01T00:00:00Z"}}


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def _public(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _id(key: ec.EllipticCurvePrivateKey) -> bytes:
    return hashlib.sha256(_public(key)).digest()


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _der_octets(content: bytes) -> bytes:
    assert len(content) < 256
    return (
        b"\x04" + bytes([len(content)])
        if len(content) < 128
        else b"\x04\x81" + bytes([len(content)])
    ) + content


@dataclass(frozen=True, slots=True)
class SigstoreInstance:
    """The keys of one instance."""

    authority: ec.EllipticCurvePrivateKey = field(default_factory=_key)
    certificate_log: ec.EllipticCurvePrivateKey = field(default_factory=_key)
    signature_log: ec.EllipticCurvePrivateKey = field(default_factory=_key)

    def trusted_root(self) -> str:
        """Return the public keys of the instance as a trusted_root.json."""
        root = self._root().public_bytes(serialization.Encoding.DER)
        return json.dumps(
            {
                "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
                "tlogs": [self._log(self.signature_log)],
                "ctlogs": [self._log(self.certificate_log)],
                "certificateAuthorities": [
                    {
                        "subject": {"organization": "tests", "commonName": "tests"},
                        "uri": "https://authority.invalid",
                        "certChain": {"certificates": [{"rawBytes": _text(root)}]},
                        **_ONE_TIME,
                    }
                ],
                "timestampAuthorities": [],
            }
        )

    def sign(
        self, statement: bytes, identity: str, issuer: str, media: str = STATEMENT_MEDIA
    ) -> bytes:
        """Return a sigstore bundle in which *identity* signs *statement*."""
        signer = _key()
        certificate = self._certificate(signer, identity, issuer)
        head = f"DSSEv1 {len(media)} {media} {len(statement)} ".encode()
        signature = _sign(signer, head + statement)
        envelope = {
            "payload": _text(statement),
            "payloadType": media,
            "signatures": [{"sig": _text(signature)}],
        }
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        body = {
            "apiVersion": "0.0.1",
            "kind": "dsse",
            "spec": {
                "envelopeHash": _hash(json.dumps(envelope).encode()),
                "payloadHash": _hash(statement),
                "signatures": [{"signature": _text(signature), "verifier": _text(pem)}],
            },
        }
        der = certificate.public_bytes(serialization.Encoding.DER)
        bundle = {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": _text(der)},
                "tlogEntries": [self._entry(json.dumps(body).encode())],
            },
            "dsseEnvelope": envelope,
        }
        return json.dumps(bundle).encode()

    def _entry(self, body: bytes) -> dict[str, Any]:
        """Return *body* as the only entry of the log of signatures."""
        root = _text(hashlib.sha256(b"\0" + body).digest())
        note = f"{_LOG}\n1\n{root}\n"
        mark = _text(_id(self.signature_log)[:4] + _sign(self.signature_log, note.encode()))
        time = int(NOW.timestamp())
        promised = {
            "body": _text(body),
            "integratedTime": time,
            "logID": _id(self.signature_log).hex(),
            "logIndex": 0,
        }
        promise = json.dumps(promised, separators=(",", ":"), sort_keys=True).encode()
        return {
            "logIndex": "0",
            "logId": {"keyId": _text(_id(self.signature_log))},
            "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": str(time),
            "inclusionPromise": {"signedEntryTimestamp": _text(_sign(self.signature_log, promise))},
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": root,
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": f"{note}\n\u2014 {_LOG} {mark}\n"},
            },
            "canonicalizedBody": _text(body),
        }

    def _root(self) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
        public = self.authority.public_key()
        usage = x509.KeyUsage(**{**_NO_USAGE, "key_cert_sign": True, "crl_sign": True})
        return (
            _builder(name, 1, public, days=3650)
            .subject_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self.authority, hashes.SHA256())
        )

    def _certificate(
        self, signer: ec.EllipticCurvePrivateKey, identity: str, issuer: str
    ) -> x509.Certificate:
        root = self._root()
        usage = x509.KeyUsage(**{**_NO_USAGE, "digital_signature": True})
        code_signing = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING])
        by = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.authority.public_key())
        builder = (
            _builder(root.subject, 2, signer.public_key(), days=1)
            .subject_name(x509.Name([]))
            .add_extension(usage, critical=True)
            .add_extension(code_signing, critical=False)
            .add_extension(by, critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.RFC822Name(identity)]), critical=True)
            .add_extension(x509.UnrecognizedExtension(_ISSUER, issuer.encode()), critical=False)
        )
        unlogged = builder.sign(self.authority, hashes.SHA256()).tbs_certificate_bytes
        logged = x509.UnrecognizedExtension(_SCT_LIST, self._timestamps(unlogged))
        return builder.add_extension(logged, critical=False).sign(self.authority, hashes.SHA256())

    def _timestamps(self, unlogged: bytes) -> bytes:
        """Return the log's list of one timestamp (RFC 6962) for the certificate *unlogged*."""
        time = int(NOW.timestamp() * 1000)
        entry = _id(self.authority) + len(unlogged).to_bytes(3, "big") + unlogged
        signed = struct.pack("!BBQH", 0, 0, time, 1) + entry + struct.pack("!H", 0)
        signature = _sign(self.certificate_log, signed)
        stamp = struct.pack("!B32sQH", 0, _id(self.certificate_log), time, 0)
        stamp += struct.pack("!BBH", 4, 3, len(signature)) + signature  # SHA-256, ECDSA
        listed = struct.pack("!H", len(stamp)) + stamp
        return _der_octets(struct.pack("!H", len(listed)) + listed)

    def _log(self, key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
        public = {
            "rawBytes": _text(_public(key)),
            "keyDetails": "PKIX_ECDSA_P256_SHA_256",
            **_ONE_TIME,
        }
        return {
            "baseUrl": "https://log.invalid",
            "hashAlgorithm": "SHA2_256",
            "publicKey": public,
            "logId": {"keyId": _text(_id(key))},
        }


_NO_USAGE = dict.fromkeys(
    (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    ),
    False,
)


def _builder(
    issuer: x509.Name, serial: int, public: ec.EllipticCurvePublicKey, *, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .serial_number(serial)
        .public_key(public)
        .not_valid_before(NOW - dt.timedelta(days=days / 2))
        .not_valid_after(NOW + dt.timedelta(days=days / 2))
    )


def _hash(content: bytes) -> dict[str, str]:
    return {"algorithm": "sha256", "value": hashlib.sha256(content).hexdigest()}
