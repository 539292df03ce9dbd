"""`RegistryConnection`: requests to one registry, with limits, and with credentials by oras.

oras finds the credentials of `docker login`, and gets tokens. The requests are made here: oras's
own wait minutes for a server that is not there, have no limits of time or size, and lose the bytes
of a manifest, which its digest is about. Whatever a registry sends is not trusted.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urljoin

from warmup.core.errors import SettingsError, ShippingError
from warmup.table.oci_image.reference import ImageReference

try:
    import requests
    import urllib3
    from oras.auth import get_auth_backend
    from oras.container import Container
    from oras.logger import logger as oras_logger
except ImportError:
    raise SettingsError(
        "an oci:// reference needs oras", "pip install 'inductor-warmup[oci]', or name a folder"
    ) from None

CHECK_NETWORK: Final = "see that the host and the network are right, and run it again"
LOG_IN: Final = "log in to the registry with `docker login`"
_LOOPBACK: Final = re.compile(r"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]+)?")
_CONNECT_S: Final = 10
_SILENCE_S: Final = 60  # without a byte
_MOST_REDIRECTS: Final = 5
_MAX_ANSWER_BYTES: Final = 256 * 1024  # of a token, or beside a redirect
_PROBLEMS: Final = (  # the first that fits
    (requests.exceptions.SSLError, "the certificate of the registry is not trusted"),
    (requests.exceptions.Timeout, "the registry did not answer in time"),
    (requests.exceptions.InvalidSchema, "the registry redirects to another scheme"),
    (requests.exceptions.TooManyRedirects, "the registry redirects without end"),
    (requests.exceptions.ChunkedEncodingError, "the connection was cut"),
    (requests.exceptions.InvalidJSONError, "the registry's token is not JSON"),
    (requests.exceptions.ContentDecodingError, "the registry sent too much beside an image"),
    (requests.exceptions.ConnectionError, "the connection was refused or cut"),
)


class RegistryConnection:
    """Requests below the URL of one repository.

    Plain HTTP is spoken with this machine only; a redirect may not change the scheme.
    """

    def __init__(self, reference: ImageReference) -> None:
        assert reference.host is not None
        self.location = reference.location
        scheme = "http" if _LOOPBACK.fullmatch(reference.host) else "https"
        self._origin = f"{scheme}://{reference.host}/"
        self._base = f"{self._origin}v2/{reference.repository}/"
        self._container = Container(f"{reference.host}/{reference.repository}")
        self._container.registry = reference.host  # which it takes for a name where it has no dot
        self._authorization: dict[str, str] = {}
        oras_logger.set_level(logging.CRITICAL)  # it prints answers of the server
        self._session = requests.Session()
        self._session.max_redirects = _MOST_REDIRECTS
        self._session.auth = _keep_headers  # in place of a .netrc, which is for other programs
        for other in tuple(self._session.adapters):
            del self._session.adapters[other]
        self._session.mount(f"{scheme}://", _LimitedAdapter(max_retries=0))

    def url_of(self, path: str) -> str:
        """Return the URL of *path*, below the repository, or with a host of its own."""
        return urljoin(self._base, path)

    @contextlib.contextmanager
    def request(
        self,
        method: str,
        url: str,
        headers: dict[str, str] | None = None,
        data: IO[bytes] | bytes | None = None,
    ) -> Iterator[Any]:
        """Give the response to a request for *url*, whose body is read in the block.

        Raises:
            ShippingError: the connection failed, also in the block.
        """
        headers = {"Accept-Encoding": "identity", **(headers or {})}
        try:
            response = self._send(method, url, headers, data)
            if response.status_code == requests.codes.unauthorized and self._is_own(url):
                with response:
                    self._authorize(response)
                if data is not None and not isinstance(data, bytes):
                    data.seek(0)
                response = self._send(method, url, headers, data)
            with response:
                yield response
        except requests.RequestException as error:
            # Without its text: a URL may have a token in it.
            problems = (text for kind, text in _PROBLEMS if isinstance(error, kind))
            problem = next(problems, "the request failed")
            raise self.error(f"{problem} ({type(error).__name__})", CHECK_NETWORK) from None
        finally:
            self._session.close()  # its connections; there are some ten requests in all

    def error(self, reason: str, advice: str) -> ShippingError:
        """Return the error that *reason* is wrong with this registry."""
        return ShippingError(self.location, reason, advice)

    def _send(
        self, method: str, url: str, headers: dict[str, str], data: IO[bytes] | bytes | None
    ) -> Any:
        own = self._authorization if self._is_own(url) else {}
        return self._session.request(
            method,
            url,
            headers={**headers, **own},
            data=data,
            stream=True,
            allow_redirects=method in {"GET", "HEAD"},
        )

    def _is_own(self, url: str) -> bool:
        """Return whether *url* is of this registry: nobody else gets its credentials."""
        return url.startswith(self._origin)

    def _authorize(self, response: Any) -> None:
        """Get what the registry asks for in *response*: the login, or a token for it.

        Raises:
            ShippingError: there is no login, or it has an unknown form.
        """
        is_basic = response.headers.get("Www-Authenticate", "").lower().startswith("basic")
        backend = get_auth_backend("basic" if is_basic else "token", self._session)
        try:
            if folder := os.environ.get("DOCKER_CONFIG"):
                # In place of the home folder's, as for docker; oras would read that one too.
                backend._auth_config = _logins_in(Path(folder) / "config.json")  # noqa: SLF001
            backend.load_configs(self._container)
            if is_basic and not getattr(backend, "_basic_auth", None):
                raise self.error("the registry asks for a login", LOG_IN)
            headers, _ = backend.authenticate_request(response, {}, refresh=True)
        except requests.RequestException:  # some are a ValueError too
            raise
        except OSError as error:
            reason = f"the login cannot be read ({type(error).__name__})"
            raise self.error(reason, "make config.json in DOCKER_CONFIG readable") from None
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            # Of oras, about an answer of another form; its text may have a token in it.
            problem = f"the registry asks for a login in an unknown form ({type(error).__name__})"
            raise self.error(problem, LOG_IN) from None
        self._authorization = {
            name: value for name, value in headers.items() if name == "Authorization"
        }


def _logins_in(file: Path) -> dict[str, Any]:
    """Return the settings of `docker login` in *file*; none where there is no such file."""
    found: dict[str, Any] = json.loads(file.read_bytes()) if file.exists() else {}
    return {"auths": {}, **found}  # not empty: oras would look in the home folder


class _LimitedAdapter(requests.adapters.HTTPAdapter):
    """Sends requests with timeouts; a body that nobody reads in pieces may not be long."""

    def send(  # noqa: PLR0917  as requests calls it
        self,
        request: requests.PreparedRequest,
        stream: bool = False,  # noqa: FBT001, FBT002  as above
        timeout: object = None,
        verify: Any = True,  # noqa: FBT002  as above
        cert: Any = None,
        proxies: Any = None,
    ) -> requests.Response:
        """Return the response to *request*; its body is in memory unless *stream* asks for it."""
        del timeout  # oras gives none
        response = super().send(
            request,
            stream=True,
            timeout=(_CONNECT_S, _SILENCE_S),
            verify=verify,
            cert=cert,
            proxies=proxies,
        )
        if stream and not response.is_redirect:
            return response
        try:
            content = response.raw.read(_MAX_ANSWER_BYTES + 1, decode_content=True)
        except urllib3.exceptions.HTTPError as error:
            raise requests.exceptions.ChunkedEncodingError(request=request) from error
        finally:
            response.raw.close()
        if len(content) > _MAX_ANSWER_BYTES:
            raise requests.exceptions.ContentDecodingError(request=request)
        response.raw = io.BytesIO(content)
        return response


def _keep_headers(request: Any) -> Any:
    return request
