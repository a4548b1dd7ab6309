"""Requests to a registry that speaks Ollama's protocol: URLs, tokens, errors.

What a manifest means is ollama_registry.py's business, sending ollama_registry_push.py's.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx

import ftman
from ftman.catalog.manifest import MANIFEST_TYPE
from ftman.clock import Clock
from ftman.errors import FtmanError, NetworkError
from ftman.names import ModelName, printable
from ftman.pull.https import require_secure
from ftman.pull.ollama_registry_sign import machine_key
from ftman.pull.threads import in_thread

TIMEOUT_S = 30.0
TEXT_LIMIT_BYTES = 4 << 20
_NO_BODY_HASH = base64.b64encode(hashlib.sha256(b"").hexdigest().encode()).decode()
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_LOOPBACK = ("all://127.0.0.1", "all://localhost", "all://[::1]")


class DeniedError(FtmanError):
    """The registry knows no right of this machine's key to do that."""

    code = "unauthorized"
    status = 401


class RegistryClient:
    """One model's place in a registry. insecure: plain http instead of https, as Ollama has it."""

    def __init__(self, name: ModelName, home: Path, insecure: bool, clock: Clock):
        scheme = "http" if insecure else name.scheme
        require_secure(f"{scheme}://{name.host}", insecure)
        self.base = f"{scheme}://{name.host}/v2/{name.namespace}/{name.model}/"
        self.token = ""
        self._name = name
        self._home = home
        self._clock = clock
        self._insecure = insecure
        self._client = httpx.AsyncClient(
            timeout=TIMEOUT_S,
            headers={"User-Agent": f"ft/{ftman.__version__}"},
            mounts=dict.fromkeys(_LOOPBACK),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    def url(self, path: str) -> str:
        """The address of something of this model."""
        return self.base + path

    async def manifest(self) -> tuple[int, bytes]:
        """Status and body of the tag's manifest.   Raises: NetworkError, DeniedError."""
        headers = {"Accept": MANIFEST_TYPE}
        url = self.url(f"manifests/{quote(self._name.tag)}")
        return await self._small("GET", url, headers)

    async def text(self, digest: str, size: int) -> bytes:
        """A small blob, checked.   Raises: NetworkError."""
        if size > TEXT_LIMIT_BYTES:
            raise NetworkError(
                f"{self._name.host} lists a text of {size} bytes; the limit is {TEXT_LIMIT_BYTES}"
            )
        status, data = await self._small("GET", self.url(f"blobs/{digest}"), {}, redirects=5)
        if status != 200:
            raise NetworkError(f"{self._name.host} answers {status} for blob {digest[:19]}")
        if hashlib.sha256(data).hexdigest() != digest.partition(":")[2]:
            raise NetworkError(
                f"{self._name.host}: digest mismatch, file must be downloaded again: want {digest}"
            )
        return data

    async def has_blob(self, digest: str) -> bool:
        """Whether the registry holds a blob; a token that this takes is kept.

        Raises: NetworkError, DeniedError.
        """
        async with self.request("HEAD", self.url(f"blobs/{digest}")) as response:
            return response.status_code < 400

    async def _small(
        self, method: str, url: str, headers: Mapping[str, str], redirects: int = 0
    ) -> tuple[int, bytes]:
        async with self.request(method, url, headers=headers) as response:
            if response.is_redirect and redirects:
                target = str(response.url.join(response.headers.get("location", "")))
                require_secure(target, self._insecure)
                return await self._small(method, target, headers, redirects - 1)
            data = bytearray()
            async for chunk in response.aiter_bytes():
                data += chunk
                if len(data) > TEXT_LIMIT_BYTES:
                    raise NetworkError(f"{_host(url)} sends more than {TEXT_LIMIT_BYTES} bytes")
            return response.status_code, bytes(data)

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
        bare: bool = False,
    ) -> AsyncIterator[httpx.Response]:
        """One request, repeated once with a token when the registry asks for one.

        bare: an address that carries its own right; no token is shown.
        Raises: NetworkError, DeniedError.
        """
        for last_try in (bare, True):
            response = await self._send(method, url, headers or {}, content, bare)
            try:
                if response.status_code != 401:
                    yield response
                    return
                if last_try:
                    raise DeniedError("unauthorized: access denied", hint=self._key_hint())
                await self._fetch_token(response.headers.get("www-authenticate", ""))
            except httpx.HTTPError as error:
                raise _network(error, url) from error
            finally:
                await response.aclose()

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes, bare: bool
    ) -> httpx.Response:
        sent = dict(headers)
        if self.token and not bare and _host(url) == _host(self.base):
            sent["Authorization"] = f"Bearer {self.token}"
        try:
            request = self._client.build_request(method, url, headers=sent, content=content)
            return await self._client.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError) as error:
            raise _network(error, url) from error

    async def _fetch_token(self, challenge: str) -> None:
        """Answer a Bearer challenge with a signature of this machine's key."""
        asked = dict(_CHALLENGE.findall(challenge))
        realm = asked.get("realm", "")
        if not challenge.lower().startswith("bearer ") or not realm:
            raise DeniedError("unauthorized: access denied", hint="It asks for no token.")
        if _host(realm) != _host(self.base):
            raise DeniedError(
                f'realm host "{printable(_host(realm))}" does not match original host '
                f'"{_host(self.base)}"'
            )
        require_secure(realm, self._insecure)
        url = f"{realm}?{self._token_query(asked)}"
        key = await in_thread(machine_key, self._home)
        signature = base64.b64encode(key.sign(f"GET,{url},{_NO_BODY_HASH}".encode())).decode()
        headers = {"Authorization": f"{key.public_text}:{signature}"}
        response = await self._send("GET", url, headers, b"", bare=True)
        try:
            data = await response.aread()
            if response.status_code != 200:
                raise DeniedError("unauthorized: access denied", hint=self._key_hint())
            self.token = str(json.loads(data)["token"])
        except (ValueError, KeyError, TypeError):
            raise NetworkError(f"{_host(realm)} answers a token request with nonsense") from None
        except httpx.HTTPError as error:
            raise _network(error, url) from error
        finally:
            await response.aclose()

    def _token_query(self, asked: Mapping[str, str]) -> str:
        nonce = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        parts = [("service", asked.get("service", ""))]
        parts += [("scope", scope) for scope in asked.get("scope", "").split() if scope]
        parts += [("ts", str(int(self._clock.wall()))), ("nonce", nonce)]
        return "&".join(f"{name}={quote(value, safe='')}" for name, value in parts)

    def _key_hint(self) -> str:
        return (
            f"{self._name.host} must know this machine's public key: "
            f"{self._home / 'keys' / 'registry.pub'}"
        )


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


def _network(error: Exception, url: str) -> NetworkError:
    return NetworkError(
        f"{_host(url)} cannot be asked: {error or type(error).__name__}",
        hint="Check the name and the network; a registry without https needs --insecure.",
    )
