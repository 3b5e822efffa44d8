"""Tokens of identity providers (OpenID Connect): JSON Web Tokens, checked with the keys that their issuer publishes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import re
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from augment.core.toml import parse_toml
from augment.errors import UsageError
from augment_server.base.errors import Refusal
from augment_server.base.names import file_version
from augment_server.base.people import OWN, PROJECT, ROLES, Person

LEEWAY_S = 30  #: by which clocks may differ
MOST_TOKEN, MOST_NAME = 8 << 10, 200  #: characters
_MOST_ANSWER, _MOST_KEYS = 1 << 20, 20  #: bytes of what an issuer answers; keys of an issuer
#: time for an answer; age at which keys are fetched; least time between
_ANSWER_S, _KEYS_S, _AGAIN_S = 5.0, 600.0, 10.0
_MOST_KNOWN = 10_000  #: tokens that need not be checked once more
#: signatures by the type of key, or its curve; none that a key of another kind could make
_SIGNED = {
    "RSA": ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"],
    "P-256": ["ES256"],
    "P-384": ["ES384"],
    "P-521": ["ES512"],
    "Ed25519": ["EdDSA"],
}


class Grant(Struct, frozen=True, forbid_unknown_fields=True):
    """A role for callers in whose tokens each claim of ``where`` has the value, or has it in its list."""

    role: Literal["viewer", "writer", "admin"]
    where: dict[str, str]
    project: str = OWN

    def fits(self, claims: Mapping[str, Any]) -> bool:
        """Whether the claims are those wanted."""
        return all(wanted in _texts(claims, name) for name, wanted in self.where.items())


class Issuer(Struct, frozen=True, forbid_unknown_fields=True):
    """An identity provider.

    Args:
        url: what its tokens have as ``iss``.
        audience: what they must have as ``aud``.
        grants: the roles of its callers.
        name: the claim by which a caller is known.
        keys: where its keys are; empty: where its ``/.well-known/openid-configuration`` says.
    """

    url: str
    audience: str
    grants: list[Grant] = msgspec.field(name="grant")
    name: str = "sub"
    keys: str = ""


class _File(Struct, forbid_unknown_fields=True):
    issuer: list[Issuer]


class Issuers:
    """The identity providers in a TOML file, which is read again when it changes; unreadable, it lets nobody in.

    Raises:
        UsageError: the file cannot be read or used, or PyJWT is not installed.
    """

    def __init__(self, path: Path) -> None:
        try:
            import jwt  # noqa: F401
        except ModuleNotFoundError as error:
            raise UsageError("--oidc-file needs PyJWT: pip install 'kineto-augment-server[oidc]'") from error
        self._path, self._version = path, file_version(path)
        self._known: dict[bytes, tuple[Person, float]] = {}  # by digest, until when each is valid
        self._keys: dict[tuple[str, str], _Keys] = {}
        try:
            self._issuers = _read(path)
        except OSError as error:
            raise UsageError(f"--oidc-file {path}: {(error.strerror or str(error)).lower()}") from error

    def person(self, token: str) -> Person | None:
        """The caller with this token and its roles, by the keys that are there; None if it is not valid."""
        digest, now = hashlib.sha256(token.encode(errors="replace")).digest(), time.time()
        self._read_again()
        person, until = self._known.get(digest, (None, 0.0))
        if person is None or until < now:
            self._known.pop(digest, None)
            if (checked := self._checked(token)) is None:
                return None
            person, until = checked
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[digest] = person, until
        return person

    async def learn(self, token: str) -> None:
        """Fetch the keys of the token's issuer, if they are not known or old, before :meth:`person`.

        Raises:
            Refusal: the issuer does not answer, and there are no keys of it.
        """
        issuer = self._issuer_of(token)
        if issuer is None:
            return
        keys = self._keys.setdefault((issuer.url, issuer.keys), _Keys(issuer, self._known.clear))
        await keys.expect(_header(token).get("kid"))

    def _read_again(self) -> None:
        version = file_version(self._path)
        if version != self._version:
            try:
                self._issuers = _read(self._path)
            except (OSError, UsageError):
                self._issuers = {}
            self._version = version
            self._known.clear()

    def _issuer_of(self, token: str) -> Issuer | None:
        issuer = _unverified(token, "payload").get("iss")
        return self._issuers.get(issuer) if isinstance(issuer, str) else None

    def _checked(self, token: str) -> tuple[Person, float] | None:
        """The caller, and until when the token is valid."""
        import jwt

        issuer = self._issuer_of(token)
        keys = self._keys.get((issuer.url, issuer.keys)) if issuer else None
        if issuer is None or keys is None:
            return None
        for key, algorithms in keys.of(_header(token).get("kid")):
            try:
                claims = jwt.decode(
                    token,
                    key,
                    algorithms=algorithms,
                    audience=issuer.audience,
                    issuer=issuer.url,
                    leeway=LEEWAY_S,
                    options={"require": ["exp", "iss", "aud", issuer.name]},
                )
            except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
                continue
            person = _person(issuer, claims)
            return (person, float(claims["exp"]) + LEEWAY_S) if person else None
        return None


class _Keys:
    """The public keys of an issuer. ``renewed`` is called when they have changed."""

    def __init__(self, issuer: Issuer, renewed: Callable[[], None]) -> None:
        self._where, self._renewed = (issuer.url, issuer.keys), renewed
        self._keys: list[tuple[str | None, Any, list[str]]] = []
        self._fetched = self._tried = -math.inf
        self._turn = asyncio.Lock()
        self._fetching: asyncio.Task[None] | None = None

    def of(self, kid: object) -> list[tuple[Any, list[str]]]:
        """The keys of this id, or all without one, each with the algorithms that it may have signed with."""
        return [(key, algorithms) for known, key, algorithms in self._keys if kid in (None, known)]

    async def expect(self, kid: object) -> None:
        """Have the keys, and wait for them if this one is missing.

        Raises:
            Refusal: there are none.
        """
        if not self.of(kid):
            async with self._turn:
                if not self.of(kid):
                    await self._fetch()
            if not self._keys:
                what = "the server does not get the keys of the token's issuer; try again"
                raise Refusal("ISSUER_AWAY", what, retry_s=_AGAIN_S)
        elif time.monotonic() - self._fetched > _KEYS_S and (self._fetching is None or self._fetching.done()):
            self._fetching = asyncio.create_task(self._fetch())

    async def _fetch(self) -> None:
        """Fetch them, unless that was tried just now. Those that are there stay if the issuer does not answer."""
        if time.monotonic() - self._tried < _AGAIN_S:
            return
        self._tried = time.monotonic()
        try:
            self._keys = await asyncio.to_thread(_fetched, *self._where)
        except (OSError, ValueError, RecursionError):
            return
        self._fetched = time.monotonic()
        self._renewed()


def _fetched(issuer: str, where: str) -> list[tuple[str | None, Any, list[str]]]:
    """The keys that an issuer publishes, or has at the address ``where``; blocks."""
    import jwt

    if not where:
        configuration = _answer(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        where = str(configuration.get("jwks_uri"))
        if configuration.get("issuer") != issuer or not _is_safe(where):
            raise ValueError("the configuration is of another issuer")
    keys = []
    for each in _answer(where).get("keys", ())[:_MOST_KEYS]:
        algorithms = _SIGNED.get(str(each.get("crv") or each.get("kty")), []) if isinstance(each, dict) else []
        algorithms = [name for name in algorithms if each.get("alg", name) == name and each.get("use", "sig") == "sig"]
        with contextlib.suppress(jwt.PyJWTError, ValueError, TypeError):
            if algorithms:
                keys.append((each.get("kid"), jwt.PyJWK(each, algorithms[0]).key, algorithms))
    return keys


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Keys come from the address that the operator trusts."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


def _answer(url: str) -> dict[str, Any]:
    with urllib.request.build_opener(_NoRedirects).open(url, timeout=_ANSWER_S) as answer:
        document = json.loads(answer.read(_MOST_ANSWER))
    if not isinstance(document, dict) or not isinstance(document.get("keys", []), list):
        raise ValueError("the answer is no object with a list of keys")
    return document


def _person(issuer: Issuer, claims: Mapping[str, Any]) -> Person | None:
    """The caller whose claims these are; None without a name or a role."""
    name = claims[issuer.name]
    if _texts(claims, issuer.name) != [name] or not (0 < len(name) <= MOST_NAME and name.isprintable()):
        return None
    roles: dict[str, str] = {}
    for grant in issuer.grants:
        if grant.fits(claims):
            roles[grant.project] = max(grant.role, roles.get(grant.project, ROLES[0]), key=ROLES.index)
    return Person(f"oidc:{issuer.url.partition('://')[2]}:{name}", roles) if roles else None


def _texts(claims: Mapping[str, Any], name: str) -> list[str]:
    """The values of a claim; none of an address that its issuer has not verified."""
    value = claims.get(name)
    if name == "email" and claims.get("email_verified", True) is not True:
        return []
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]


def _header(token: str) -> dict[str, Any]:
    return _unverified(token, "header")


def _unverified(token: str, part: str) -> dict[str, Any]:
    """A part of what may be a token, before anything of it is known to be true; empty if it is none."""
    import jwt

    if len(token) > MOST_TOKEN or token.count(".") != 2:
        return {}
    try:
        content = jwt.decode_complete(token, options={"verify_signature": False})[part]
    except (jwt.PyJWTError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_safe(url: str) -> bool:
    """Whether nobody on the way can change what is fetched there."""
    parts = urlsplit(url)
    return bool(parts.hostname) and (
        parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost"))
    )


def _read(path: Path) -> dict[str, Issuer]:
    """The issuers by their URLs.

    Raises:
        UsageError: the file is not as it must be.
    """
    try:
        issuers = msgspec.convert(parse_toml(path.read_text("utf-8")), _File).issuer
    except (ValueError, msgspec.ValidationError) as error:
        raise UsageError(f"--oidc-file {path}: {error}") from error
    for issuer in issuers:
        for url in (issuer.url, *([issuer.keys] if issuer.keys else [])):
            if not _is_safe(url):
                raise UsageError(f"--oidc-file {path}: {url}: must be an https:// URL")
        if not issuer.audience or not issuer.grants:
            raise UsageError(f"--oidc-file {path}: {issuer.url}: name an audience, and at least one grant")
        for grant in issuer.grants:
            if grant.project and not re.fullmatch(PROJECT, grant.project):
                raise UsageError(f"--oidc-file {path}: {grant.project!r} is no project's name: a-z, 0-9 and -")
    if len({issuer.url for issuer in issuers}) < len(issuers) or not issuers:
        raise UsageError(f"--oidc-file {path}: name each issuer once, and at least one")
    return {issuer.url: issuer for issuer in issuers}
