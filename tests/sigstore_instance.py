"""`SigstoreInstance`: a sigstore of the tests' own, whose signatures sigstore-python verifies.

A certificate authority, a log of certificates and a log of signatures, each a key in memory. It
signs what it is given for whatever identity it is told, as Fulcio and Rekor would after a login;
`sigstore_services` serves both over HTTP, so that sigstore-python signs with them.
What sigstore-python checks offline is real: the chain, the timestamps of both logs, the proof of
inclusion, the certificate's identity and issuer, and the envelope's signature.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import hashlib
import json
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
    now: dt.datetime = NOW

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
        certificate = self.certificate(signer.public_key(), identity, issuer)
        head = f"DSSEv1 {len(media)} {media} {len(statement)} ".encode()
        signature = _sign(signer, head + statement)
        envelope = {
            "payload": _text(statement),
            "payloadType": media,
            "signatures": [{"sig": _text(signature)}],
        }
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        body = _body(envelope, statement, _text(signature), _text(pem))
        der = certificate.public_bytes(serialization.Encoding.DER)
        bundle = {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": _text(der)},
                "tlogEntries": [self._entry(body)],
            },
            "dsseEnvelope": envelope,
        }
        return json.dumps(bundle).encode()

    def _entry(self, body: bytes) -> dict[str, Any]:
        """Return *body* as the only entry of the log of signatures."""
        root = _text(hashlib.sha256(b"\0" + body).digest())
        note = f"{_LOG}\n1\n{root}\n"
        mark = _text(_id(self.signature_log)[:4] + _sign(self.signature_log, note.encode()))
        time = int(self.now.timestamp())
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

    def logged(self, proposed: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of the log of signatures, Rekor's first API, to a *proposed* entry."""
        content = proposed["spec"]["proposedContent"]
        envelope = json.loads(content["envelope"])
        (signature,) = envelope["signatures"]
        statement = base64.b64decode(envelope["payload"])
        entry = self._entry(_body(envelope, statement, signature["sig"], content["verifiers"][0]))
        proof = entry["inclusionProof"]
        proof |= {
            "logIndex": 0,
            "treeSize": 1,
            "rootHash": base64.b64decode(proof["rootHash"]).hex(),
            "checkpoint": proof["checkpoint"]["envelope"],
        }
        promise = entry["inclusionPromise"]["signedEntryTimestamp"]
        answer = {
            "body": entry["canonicalizedBody"],
            "integratedTime": int(entry["integratedTime"]),
            "logID": _id(self.signature_log).hex(),
            "logIndex": 0,
            "verification": {"inclusionProof": proof, "signedEntryTimestamp": promise},
        }
        return {"0" * 64: answer}

    def chain(self, request: dict[str, Any], identity: str, issuer: str) -> dict[str, Any]:
        """Return the answer of the authority, Fulcio's, to a *request* of *identity*."""
        pem = base64.b64decode(request["certificateSigningRequest"])
        public = x509.load_pem_x509_csr(pem).public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        chain = [self.certificate(public, identity, issuer), self._root()]
        texts = [each.public_bytes(serialization.Encoding.PEM).decode() for each in chain]
        return {"signedCertificateEmbeddedSct": {"chain": {"certificates": texts}}}

    def _root(self) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
        public = self.authority.public_key()
        usage = x509.KeyUsage(**{**_NO_USAGE, "key_cert_sign": True, "crl_sign": True})
        return (
            _builder(name, 1, public, self.now, days=3650)
            .subject_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self.authority, hashes.SHA256())
        )

    def certificate(
        self, signer: ec.EllipticCurvePublicKey, identity: str, issuer: str
    ) -> x509.Certificate:
        """Return a certificate that *signer* is the key of *identity*, logged."""
        root = self._root()
        usage = x509.KeyUsage(**{**_NO_USAGE, "digital_signature": True})
        code_signing = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING])
        by = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.authority.public_key())
        builder = (
            _builder(root.subject, 2, signer, self.now, days=1)
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
        time = int(self.now.timestamp() * 1000)
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
    issuer: x509.Name,
    serial: int,
    public: ec.EllipticCurvePublicKey,
    now: dt.datetime,
    *,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .serial_number(serial)
        .public_key(public)
        .not_valid_before(now - dt.timedelta(days=days / 2))
        .not_valid_after(now + dt.timedelta(days=days / 2))
    )


def _body(envelope: dict[str, Any], statement: bytes, signature: str, pem: str) -> bytes:
    """Return what the log keeps of *envelope*."""
    spec = {
        "envelopeHash": _hash(json.dumps(envelope).encode()),
        "payloadHash": _hash(statement),
        "signatures": [{"signature": signature, "verifier": pem}],
    }
    return json.dumps({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec}).encode()


def _hash(content: bytes) -> dict[str, str]:
    return {"algorithm": "sha256", "value": hashlib.sha256(content).hexdigest()}


def identity_token(identity: str, issuer: str, now: dt.datetime) -> str:
    """Return a token that says who *identity* is. Nobody signed it; sigstore-python reads it."""
    claims = {
        "aud": "sigstore",
        "sub": identity,
        "iss": issuer,
        "iat": int(now.timestamp()) - 60,
        "exp": int(now.timestamp()) + 600,
    }
    parts = (json.dumps(part).encode() for part in ({"alg": "RS256", "typ": "JWT"}, claims))
    texts = [base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (*parts, b"none")]
    return ".".join(texts)


@contextlib.contextmanager
def sigstore_services(
    instance: SigstoreInstance, identity: str, issuer: str, *, status: int = 201
) -> Iterator[str]:
    """Serve *instance*, whose only user is *identity*; give its client trust config as JSON."""

    class Services(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/api/v2/signingCert":
                assert self.headers["Authorization"].startswith("Bearer ")
                answer = instance.chain(request, identity, issuer)
            else:
                assert self.path == "/api/v1/log/entries"
                answer = instance.logged(request)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Services) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        service = [{"url": url, "majorApiVersion": 1, "operator": "tests", **_ONE_TIME}]
        config = {
            "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
            "trustedRoot": json.loads(instance.trusted_root()),
            "signingConfig": {
                "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
                "caUrls": service,
                "rekorTlogUrls": service,
                "oidcUrls": [],
                "tsaUrls": [],
                "rekorTlogConfig": {"selector": "ANY"},
                "tsaConfig": {"selector": "ANY"},
            },
        }
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield json.dumps(config)
        finally:
            server.shutdown()
            thread.join()
