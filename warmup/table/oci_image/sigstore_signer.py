"""`SigstoreSigner`: signs statements by sigstore, as the identity in a token."""

from __future__ import annotations

from pathlib import Path

from warmup.core.error_text import shown
from warmup.core.errors import SettingsError, ShippingError

try:
    from sigstore.dsse import Statement
    from sigstore.errors import Error
    from sigstore.models import ClientTrustConfig
    from sigstore.oidc import IdentityError, IdentityToken
    from sigstore.sign import SigningContext
except ImportError:
    raise SettingsError(
        "--sign needs sigstore", "pip install 'inductor-warmup[sigstore]'"
    ) from None


class SigstoreSigner:
    """Signs as the identity in *token*, at the sigstore instance of the file *trust_config*.

    Without *trust_config* it is the public instance: the identity is then in a public log.

    Raises:
        SettingsError: the token is none, or has expired, or the instance is not known.
    """

    def __init__(self, token: str, trust_config: Path | None) -> None:
        try:
            self._token = IdentityToken(token)
        except IdentityError as error:  # whose text may have the token in it
            raise SettingsError(
                "SIGSTORE_IDENTITY_TOKEN is no identity token, or has expired",
                "get a new token, with the audience sigstore",
            ) from error
        try:
            if trust_config is None:
                config = ClientTrustConfig.production()
            else:
                config = ClientTrustConfig.from_json(trust_config.read_text(encoding="utf-8"))
            self._context = SigningContext.from_trust_config(config)
        except (Error, OSError, ValueError) as error:
            name = "of sigstore" if trust_config is None else shown(trust_config)
            raise SettingsError(
                f"the trust config {name} cannot be used ({type(error).__name__})",
                "name the config of a sigstore instance with --trust-config",
            ) from error

    @property
    def identity(self) -> str:
        """The identity that the token claims."""
        return str(self._token.identity)

    def sign(self, statement: bytes, location: str) -> bytes:
        """Return a sigstore bundle that signs *statement*; *location* is for errors.

        Raises:
            ShippingError: the instance did not sign it.
        """
        try:
            with self._context.signer(self._token) as signer:
                return str(signer.sign_dsse(Statement(statement)).to_json()).encode()
        except Exception as error:  # each service has errors of its own, with texts of the server
            raise ShippingError(
                location,
                f"sigstore did not sign the table ({type(error).__name__})",
                "nothing was pushed; see that the token and the network are right",
            ) from error
