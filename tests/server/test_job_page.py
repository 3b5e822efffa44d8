"""The page behind a job's link: what a person sees there, and that nothing of a client's runs in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from curl import Answered, curl
from in_process import trace
from serving_process import Server, serving

from augment.client import Client
from augment.client.connection import Deadline
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from machine import chromium

HOSTILE = "<script>alert('x')</script> & \"'"
BROWSER = ("-H", "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8")
PERSON = ("-u", "me:secret-token")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "tokens").write_text("ci:writer@training:secret-token\n")
    with serving(folder / "state", "--http", "127.0.0.1:0", "--token-file", folder / "tokens") as server:
        yield server


@pytest.fixture(scope="module")
def jobs(server: Server, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A job that has succeeded, and one that has failed, with hostile names."""
    folder, names = tmp_path_factory.mktemp("traces"), []
    (folder / "b.json").write_text(HOSTILE)
    with Client(server.address, token="secret-token", project="training") as client:
        for path in (trace(folder / "a & 'b' <i> %2f#?.json", name=HOSTILE.replace('"', "")), folder / "b.json"):
            upload = client._upload(str(path), Deadline(None, ""), lambda *_: None)
            spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=upload)))
            asked = calls.CreateJobRequest(
                spec=spec, parent="projects/training", display_name=HOSTILE, labels={"suite": HOSTILE}
            )
            job = client._stub.CreateJob(asked, metadata=client._connection.metadata).job
            names.append(client._ended(job, Deadline(None, ""), lambda *_: None, "").name)
    return names


def test_what_a_browser_gets(server: Server, jobs: list[str]) -> None:
    for job, state in zip(jobs, ("SUCCEEDED", "FAILED"), strict=True):
        page = curl(f"{server.http}/v1/{job}", *PERSON, *BROWSER)
        text = page.body.decode()
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert f"<strong>{state}</strong>" in text
        assert "default-src 'none'; style-src 'sha256-" in page.headers["content-security-policy"]
        assert text.count("<script") == 1
        assert "alert(&#x27;x&#x27;)" in text
    as_json = curl(f"{server.http}/v1/{jobs[0]}", *PERSON)
    assert as_json.json["job"]["displayName"] == HOSTILE


def refused(answered: Answered) -> tuple[int, str]:
    return answered.status, answered.headers["content-type"].partition(";")[0]


def test_without_a_token(server: Server, jobs: list[str]) -> None:
    """A browser asks for one; it is good for reading alone, and a program is answered as before."""
    url = f"{server.http}/v1/{jobs[0]}"
    asked = curl(url, *BROWSER)
    assert refused(asked) == (401, "text/html")
    assert asked.headers["www-authenticate"].startswith("Basic ")
    assert curl(url).headers["www-authenticate"] == "Bearer"
    for credentials in ("me:wrong", "secret-token:", "me:secret-token:x"):
        assert refused(curl(url, *BROWSER, "-u", credentials)) == (401, "text/html")
    assert curl(url, *BROWSER, "-H", "Authorization: Basic ??").status == 401
    assert curl(url, *PERSON, "-X", "DELETE").status == 401
    assert curl(url, "-H", "Origin: https://elsewhere.example", *PERSON, *BROWSER).status == 403
    assert refused(curl(f"{url}0", *PERSON, *BROWSER)) == (404, "text/html")


@pytest.mark.slow
def test_in_a_browser(server: Server, jobs: list[str]) -> None:
    """Nothing of the names runs; files are downloaded, and handed over to the Perfetto UI."""
    playwright, path = chromium()
    ui = """<script>addEventListener('message', (message) => {
      if (message.data === 'PING') message.source.postMessage('PONG', '*');
      else document.title = `${message.data.perfetto.title} ${message.data.perfetto.buffer.byteLength}`;
    })</script>"""
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context(http_credentials={"username": "me", "password": "secret-token"})
        context.route("https://ui.perfetto.dev/**", lambda route: route.fulfill(body=ui, content_type="text/html"))
        said: list[Any] = []
        context.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.goto(f"{server.http}/v1/{jobs[0]}")
        assert page.inner_text("h1") == HOSTILE
        assert page.evaluate("getComputedStyle(document.querySelector('.verdict')).borderLeftWidth") == "5px"
        with page.expect_download() as download:
            page.click("a[href$='augmented.pftrace:download']")
        size = Path(download.value.path()).stat().st_size
        assert download.value.suggested_filename.endswith(".augmented.pftrace")
        with context.expect_page() as opened:
            page.click("button")
        opened.value.wait_for_function("document.title")
        assert opened.value.title() == f"{page.get_attribute('button', 'data-name')} {size}"
        assert said == []
        browser.close()
