"""`SigstoreVerifier`: signatures of sigstore, by one identity that one issuer vouches for."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from warmup.core.error_text import shown
from warmup.core.errors import SettingsError
from warmup.table.oci_image.signature import signature_error

try:
    from sigstore.errors import Error, VerificationError
    from sigstore.models import Bundle, InvalidBundle, TrustedRoot
    from sigstore.verify import Verifier
    from sigstore.verify.policy import Identity
except ImportError:
    raise SettingsError(
        "--identity needs sigstore", "pip install 'inductor-warmup[sigstore]'"
    ) from None

_STATEMENT_MEDIA: Final = "application/vnd.in-toto+json"
logging.getLogger("sigstore").addHandler(logging.NullHandler())  # stderr has errors of ours


class SigstoreVerifier:
    """Verifies that *identity* signed, whom *issuer* vouches for.

    Without *trusted_root*, a file, the trusted root is that of sigstore's public instance; it is
    refreshed over the network unless *offline*.

    Raises:
        SettingsError: there is no trusted root.
    """

    def __init__(
        self, identity: str, issuer: str, trusted_root: Path | None, *, offline: bool
    ) -> None:
        self._policy = Identity(identity=identity, issuer=issuer)
        try:
            if trusted_root is None:
                self._verifier = Verifier.production(offline=offline)
            else:
                root = TrustedRoot.from_file(str(trusted_root))
                self._verifier = Verifier(trusted_root=root)
        except (Error, OSError, ValueError) as error:
            name = "of sigstore" if trusted_root is None else shown(trusted_root)
            raise SettingsError(
                f"the trusted root {name} cannot be used ({type(error).__name__})",
                "name a trusted_root.json with --trusted-root",
            ) from error

    def signed_statement(self, signature: bytes, location: str) -> bytes:
        """Return the statement that *signature* signs.

        Raises:
            ShippingError: it is damaged, or not a signature of that identity.
        """
        try:
            bundle = Bundle.from_json(signature)
            signed: tuple[str, bytes] = self._verifier.verify_dsse(bundle, self._policy)
        except (InvalidBundle, VerificationError) as error:
            raise signature_error(location, f"{error}") from error
        media, statement = signed
        if media != _STATEMENT_MEDIA:
            raise signature_error(location, f"it signs {shown(media)}, and no statement")
        return statement
