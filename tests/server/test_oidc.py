"""Tokens of an identity provider: made here, with keys that a server of this test publishes."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from in_process import told_by, trace
from serving_process import Server, augment, serving
from test_people import TEAM

from augment.client import Client
from augment.errors import UsageError
from augment.v1 import service_pb2 as calls
from augment.v1 import service_pb2_grpc
from augment_server.base import oidc
from augment_server.base.oidc import Issuers

jwt = pytest.importorskip("jwt", reason="PyJWT is not installed (extra [oidc])")
ec = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ec")
rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
ALGORITHMS = jwt.get_algorithm_by_name


class Provider:
    """An identity provider: its URL, and its keys by their ids."""

    def __init__(self) -> None:
        self.keys: dict[str, tuple[Any, str]] = {}
        self.asked: list[str] = []
        provider = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked.append(self.path)
                known = {"/.well-known/openid-configuration": provider.configuration, "/keys": provider.published}
                self.send_response(200 if self.path in known else 404)
                self.end_headers()
                self.wfile.write(json.dumps(known.get(self.path, dict)()).encode())

            def log_message(self, *_: Any) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def configuration(self) -> dict[str, Any]:
        return {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}

    def published(self) -> dict[str, Any]:
        keys = [
            json.loads(ALGORITHMS(algorithm).to_jwk(key.public_key())) | {"kid": kid, "use": "sig", "alg": algorithm}
            for kid, (key, algorithm) in self.keys.items()
        ]
        return {"keys": [*keys, {"kty": "oct", "kid": "shared", "k": "c2VjcmV0" * 6}, {"kty": "?"}, 7]}

    def token(self, kid: str = "a", key: Any = None, algorithm: str = "", **claims: Any) -> str:
        known, usual = self.keys.get(kid, (None, "RS256"))
        claimed = {"iss": self.url, "aud": "augment", "sub": "repo:acme/train", "exp": time.time() + 600, **claims}
        claimed = {name: value for name, value in claimed.items() if value is not None}
        return jwt.encode(claimed, key or known, algorithm or usual, headers={"kid": kid})


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    made = Provider()
    made.keys = {
        "a": (rsa.generate_private_key(65537, 2048), "RS256"),
        "b": (ec.generate_private_key(ec.SECP256R1()), "ES256"),
    }
    yield made
    made.server.shutdown()
    made.server.server_close()


def configured(path: Path, provider: Provider, name: str = "sub") -> Path:
    path.write_text(
        f'[[issuer]]\nurl = "{provider.url}"\naudience = "augment"\nname = "{name}"\n'
        '[[issuer.grant]]\nrole = "writer"\nproject = "team"\nwhere = { repository = "acme/train" }\n'
        '[[issuer.grant]]\nrole = "viewer"\nproject = "team"\nwhere = { groups = "ml" }\n'
    )
    return path


@pytest.fixture(scope="module")
def process(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("oidc")
    (folder / "tokens").write_text("ci:writer@team:write\n")
    flags = ("--http", "127.0.0.1:0", "--token-file", folder / "tokens")
    flags += ("--oidc-file", configured(folder / "oidc.toml", provider))
    with serving(folder / "state", *flags) as server:
        yield server


def reason(server: Server, token: str) -> str:
    """Why an upload with this token is refused; empty if it is not."""
    with grpc.insecure_channel(server.address) as channel:
        request, bearer = calls.StartUploadRequest(file_name="a.json", validate_only=True), f"Bearer {token}"
        try:
            service_pb2_grpc.AugmentServiceStub(channel).StartUpload(request, metadata=[("authorization", bearer)])
        except grpc.RpcError as error:
            return str(told_by(error).reason)
    return ""


def test_what_a_pipeline_made_a_colleague_opens(provider: Provider, process: Server, tmp_path: Path) -> None:
    with Client(process.address, token=provider.token(repository="acme/train")) as client:
        client.augment(trace(tmp_path / "a.json"), only=["kernel_type_breakdown"])
    line = process.logged("call", method="CreateJob", code="OK")
    assert line["client"] == f"oidc:{provider.url.partition('://')[2]}:repo:acme/train"
    assert line["resource"].startswith(f"{TEAM}/jobs/")
    assert reason(process, provider.token("b", groups=["x", "ml"])) == "NOT_PERMITTED"  # a viewer
    assert reason(process, "write") == ""  # lines of the other file count, too
    assert provider.asked.count("/keys") == 1


def test_what_is_no_valid_token(provider: Provider, process: Server) -> None:
    good = {"repository": "acme/train"}
    another = rsa.generate_private_key(65537, 2048)
    published = provider.published()["keys"][0]["n"]
    wrong = {
        "expired": provider.token(**good, exp=time.time() - 60),
        "not yet": provider.token(**good, nbf=time.time() + 600),
        "never ends": provider.token(**good, exp=None),
        "for another": provider.token(**good, aud="another"),
        "for nobody": provider.token(**good, aud=None),
        "of another": provider.token(**good, iss="https://other.example.com"),
        "another key": provider.token(**good, key=another),
        "unknown key": provider.token("gone", key=another, **good),
        "no signature": jwt.encode({"iss": provider.url, "aud": "augment", **good}, None, "none", {"kid": "a"}),
        "signed with what all know": provider.token(**good, key=published, algorithm="HS256"),
        "signed with a shared key": provider.token("shared", key="secret" * 6, algorithm="HS256", **good),
        "another algorithm of the key": provider.token(**good, key=provider.keys["a"][0], algorithm="RS512"),
        "no role": provider.token(repository="acme/other"),
        "a claim of another form": provider.token(repository={"acme/train": 1}),
        "no name": provider.token(**good, sub=None),
        "a long name": provider.token(**good, sub="x" * 201),
        "a name of control characters": provider.token(**good, sub="a\nb"),
        "cut": provider.token(**good)[:-8],
        "deep": f"{'W1' * 2000}.{'W1' * 2000}.x",
        "long": provider.token(**good, more="x" * 9000),
    }
    assert {name: reason(process, token) for name, token in wrong.items()} == dict.fromkeys(wrong, "TOKEN_UNKNOWN")
    assert reason(process, provider.token(**good)) == ""
    longest = provider.token(**good, more="x" * 5600)
    assert 8000 < len(longest) <= oidc.MOST_TOKEN
    for _ in range(20):  # by gRPC's own limits some of such calls fail, at random
        assert reason(process, longest) == ""
    http = urllib.request.Request(f"{process.http.rstrip('/')}/v1/jobs", headers={"Authorization": f"Bearer {longest}"})
    with urllib.request.urlopen(http) as answer:
        assert answer.status == 200


def test_new_keys_are_fetched_and_old_ones_forgotten(
    provider: Provider, process: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "_AGAIN_S", 0.0)
    issuers = Issuers(configured(tmp_path / "oidc.toml", provider, "email"))
    token = provider.token(repository="acme/train", email="a@acme.example")

    async def known(token: str) -> bool:
        await issuers.learn(token)
        return issuers.person(token) is not None

    assert asyncio.run(known(token))
    assert not asyncio.run(known(provider.token(repository="acme/train", email="a@b.c", email_verified=False)))
    before = provider.keys
    provider.keys = {"new": (rsa.generate_private_key(65537, 2048), "RS256")}
    try:
        assert asyncio.run(known(provider.token("new", repository="acme/train", email="a@acme.example")))
        assert not asyncio.run(known(token))
    finally:
        provider.keys = before
    (tmp_path / "oidc.toml").write_text("nothing = 1\n")  # unreadable, it lets nobody in
    assert not asyncio.run(known(token))


def test_an_issuer_that_does_not_answer(tmp_path: Path, provider: Provider) -> None:
    path = configured(tmp_path / "oidc.toml", provider)
    path.write_text(path.read_text().replace(provider.url, "http://127.0.0.1:9"))
    with serving(tmp_path / "state", "--oidc-file", path) as server:
        assert reason(server, provider.token(iss="http://127.0.0.1:9", repository="acme/train")) == "ISSUER_AWAY"
        assert reason(server, provider.token(repository="acme/train")) == "TOKEN_UNKNOWN"


@pytest.mark.parametrize(("text", "message"), [
    ("", "missing required field"),
    ("[[issuer]]\nurl = 'http://acme.example'\naudience = 'a'\ngrant = [{role='viewer', where={}}]", "https://"),
    ("[[issuer]]\nurl = 'https://acme.example'\naudience = ''\ngrant = [{role='viewer', where={}}]", "an audience"),
    ("[[issuer]]\nurl = 'https://acme.example'\naudience = 'a'\ngrant = []", "at least one grant"),
    ("[[issuer]]\nurl = 'https://acme.example'\naudience = 'a'\ngrant = [{role='root', where={}}]", "'root'"),
    ("[[issuer]]\nurl = 'https://acme.example'\naudience = 'a'\ngrant = [{role='viewer'}]", "`where`"),
])  # fmt: skip
def test_files_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "oidc.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        Issuers(tmp_path / "oidc.toml")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    ended = augment("serve", "--state-dir", tmp_path / "state", "--oidc-file", tmp_path / "gone")
    assert (ended.returncode, "no such file" in ended.stderr) == (2, True)
