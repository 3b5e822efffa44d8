"""The page of a job, for a person who opens its link: state, what was found, stages, files to download and to look at.

Every text in it is escaped. Its policy lets only its own style and script run, which talk to this server alone; the
script hands a trace over to the Perfetto UI, and does nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from typing import Any
from urllib.parse import quote

from aiohttp import web

from augment.core.output_files import SUMMARY_SUFFIX, is_of_job
from augment.core.text import counted, size
from augment.v1 import resources_pb2 as v1

#: a small analysis with whose rows the verdict comes, by the kind of a job
VERDICT_WITH = {"augment": "diagnosis", "job": "stragglers", "diff": "diff_waterfall"}
_STATES = v1.Job.State
_ENDED = (v1.Job.STATE_SUCCEEDED, v1.Job.STATE_FAILED, v1.Job.STATE_CANCELLED)
_TRACES = (".pftrace", ".augmented.json", ".augmented.json.gz", ".diff.json.gz", ".cut.json.gz")
_MOST_FILES = 500
_LOOK_S = 5  #: after which the page of a job that has not ended is loaded again
_STYLE = resources.files("augment.results.report").joinpath("page.css").read_text(encoding="utf-8")
#: as https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui says
_SCRIPT = """
const ORIGIN = 'https://ui.perfetto.dev';
for (const button of document.querySelectorAll('button[data-file]')) button.addEventListener('click', async () => {
  const ui = window.open(ORIGIN), said = button.textContent, name = button.dataset.name;
  button.textContent = 'fetching …';
  try {
    const answer = await fetch(button.dataset.file);
    if (!answer.ok) throw new Error(`${answer.status}`);
    const buffer = await answer.arrayBuffer();
    const asking = setInterval(() => ui.postMessage('PING', ORIGIN), 200);
    window.addEventListener('message', function ready(message) {
      if (message.source !== ui || message.origin !== ORIGIN || message.data !== 'PONG') return;
      clearInterval(asking);
      window.removeEventListener('message', ready);
      ui.postMessage({perfetto: {buffer, title: name, fileName: name}}, ORIGIN);
    });
    button.textContent = said;
  } catch (error) { button.textContent = `cannot be fetched (${error.message}): download it`; }
});
"""
_LOGIN = 'Basic realm="kineto-augment: any name, and the token as the password", charset="UTF-8"'


def wants_page(accepted: str) -> bool:
    """Whether a header ``Accept`` is that of a browser that shows pages."""
    return any(part.partition(";")[0].strip().lower() == "text/html" for part in accepted.split(","))


def of_job(job: v1.Job, verdict: Sequence[str]) -> web.Response:
    """The page of a job."""
    title, state = job.display_name or job.name, _STATES.Name(job.state).removeprefix("STATE_")
    parts = [f"<h1>{escape(title)}</h1>", f'<div class="verdict"><p><strong>{state}</strong>{_progress(job)}</p>']
    parts += [f"<p>{escape(text)}</p>" for text in verdict]
    if job.HasField("error"):
        parts.append(f"<p>{escape(job.error.message)} ({escape(job.error.reason)})</p>")
    parts.append("</div><dl>")
    parts += [f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in _facts(job) if text]
    parts.append("</dl>")
    if unread := [f"{each.file_name}: {each.error.message}" for each in job.failures]:
        parts.append(_list(f"{counted(len(unread), 'trace')} could not be read", unread))
    if job.notes:
        parts.append(_list("Notes", job.notes))
    if job.artifacts:
        parts += _files(job)
    if job.progress.stages:
        rows = (
            f'<tr><td>{escape(each.stage)}</td><td class="number">{each.duration.ToNanoseconds() / 1e9:.3f} s</td></tr>'
            for each in job.progress.stages
        )
        table = f"<table><tbody>{''.join(rows)}</tbody></table>"
        parts.append(f"<details><summary>{counted(len(job.progress.stages), 'stage')}</summary>{table}</details>")
    return _page(title, "".join(parts), 200, 0 if job.state in _ENDED else _LOOK_S)


def of_failure(status: Any, number: int) -> web.Response:
    """The page that says why there is none; without a token, the browser asks for one first."""
    answer = _page(f"{number}", f"<h1>{number}</h1><p>{escape(status.message)}</p>", number)
    if number == 401:
        answer.headers["WWW-Authenticate"] = _LOGIN
    return answer


def _progress(job: v1.Job) -> str:
    if job.state == v1.Job.STATE_QUEUED:
        return f", place {job.queue_position}" if job.queue_position else ""
    at = job.progress
    if job.state != v1.Job.STATE_RUNNING or not at.stage:
        return ""
    return f": {escape(at.stage)}, {at.done_count} of {counted(at.total_count, 'stage')} done"


def _facts(job: v1.Job) -> Iterator[tuple[str, str]]:
    yield "job", job.name
    yield "kind", job.spec.WhichOneof("kind") or ""
    yield (
        "created",
        f"{job.create_time.ToDatetime():%Y-%m-%d %H:%M:%S} UTC{f' by {job.creator}' if job.creator else ''}",
    )
    if job.HasField("start_time") and job.HasField("end_time"):
        yield "took", f"{(job.end_time.ToNanoseconds() - job.start_time.ToNanoseconds()) / 1e9:.1f} s"
    if job.HasField("expire_time"):
        yield "kept until", f"{job.expire_time.ToDatetime():%Y-%m-%d %H:%M} UTC"
    yield "labels", ", ".join(f"{name}={value}" for name, value in sorted(job.labels.items()))


def _files(job: v1.Job) -> Iterator[str]:
    """The files, those of a whole job first; without what only programs read."""
    files = [each for each in job.artifacts if not each.file_name.endswith(SUMMARY_SUFFIX)]
    files.sort(key=lambda each: not is_of_job(each.file_name))
    yield '<h2>Files</h2><div class="scroll"><table><tbody>'
    for each in files[:_MOST_FILES]:
        path = escape(f"{quote(each.name.rpartition('jobs/')[2])}:download")
        name = escape(each.file_name)
        ui = f'<button data-file="{path}" data-name="{name}">open in Perfetto</button>'
        yield (
            f'<tr><td class="text"><a href="{path}">{name}</a></td><td class="number">{size(each.size_bytes)}</td>'
            f"<td>{ui if each.file_name.endswith(_TRACES) else ''}</td></tr>"
        )
    yield "</tbody></table></div>"
    if len(files) > _MOST_FILES:
        yield f"<p>{len(files) - _MOST_FILES} more: as JSON, this address lists all.</p>"


def _list(title: str, texts: Sequence[str]) -> str:
    return f"<h2>{title}</h2><ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def _page(title: str, body: str, status: int, again_s: int = 0) -> web.Response:
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (_STYLE, _SCRIPT))
    style, script = (f"'sha256-{digest}'" for digest in hashes)
    policy = f"default-src 'none'; style-src {style}; script-src {script}; connect-src 'self'; base-uri 'none'"
    headers = {
        "Server": "kineto-augment",
        "Cache-Control": "no-store",
        "Vary": "Accept",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Content-Security-Policy": f"{policy}; form-action 'none'; frame-ancestors 'none'",
    }
    if again_s:
        headers["Refresh"] = str(again_s)
    text = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f"<body>{body}<script>{_SCRIPT}</script></body></html>\n"
    )
    return web.Response(text=text, status=status, headers=headers, content_type="text/html", charset="utf-8")
