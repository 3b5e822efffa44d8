"""Who may do what: the roles of callers in projects, and the role that each call needs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from augment_server.base.errors import Refusal

ROLES = ("viewer", "writer", "admin")  #: each may do what those before it may
OWN = ""  #: the project of a caller alone, which has no name
#: the role that each method of the service needs in the project that it is about; None: none in any
RIGHTS: Mapping[str, str | None] = {
    "GetUpload": "viewer",
    "ListUploads": "viewer",
    "GetJob": "viewer",
    "ListJobs": "viewer",
    "WatchJob": "viewer",
    "WatchJobs": "viewer",
    "ListArtifacts": "viewer",
    "GetArtifact": "viewer",
    "ReadArtifact": "viewer",
    "DownloadArtifact": "viewer",
    "GetMetrics": "viewer",
    "QueryMetrics": "viewer",
    "StartUpload": "writer",
    "BatchStartUploads": "writer",
    "UploadTrace": "writer",
    "UploadBytes": "writer",
    "DeleteUpload": "writer",
    "CreateJob": "writer",
    "BatchCreateJobs": "writer",
    "Augment": "writer",
    "UpdateJob": "writer",
    "CancelJob": "writer",
    "DeleteJob": "writer",  # of the caller's own jobs; an admin those of others
    "ListAnalyses": None,
    "GetServerInfo": None,
}
WRITES = frozenset(method for method, role in RIGHTS.items() if role not in (None, "viewer"))
PROJECT = r"[a-z][a-z0-9-]{0,62}"
_REALM = "project:"
_AS_PARENT, _IN_PROJECT = re.compile(rf"projects/({PROJECT})"), re.compile(rf"projects/({PROJECT})/.*", re.DOTALL)


@dataclass(frozen=True)
class Person:
    """A caller, as it has proved to be: ``name:…``, ``token:…``, ``oidc:…``, ``certificate:…`` or ``host:…``.

    ``roles`` has its role in each project, the own one first: that of names without a project.
    """

    client: str
    roles: Mapping[str, str] = field(default_factory=lambda: {OWN: "admin"})


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a call about a project.

    ``client`` is what its uploads and jobs count for, ``realm`` what makes them visible: both are the project's, if it
    has a name. In its own project ``client`` is the caller, and all callers who prove nothing share the empty realm.
    """

    client: str
    realm: str
    person: str = ""  #: who it is; recorded only for jobs of a project
    is_admin: bool = True

    @property
    def creator(self) -> str:
        """Who creates a job of a project; empty in the caller's own, which has only one."""
        return self.person if self.realm.startswith(_REALM) else ""


def caller_of(person: Person, method: str, name: str, parent: str = "") -> Caller:
    """The caller of a method about a resource of this name, or, without one, of this parent.

    Raises:
        Refusal: the name is no resource's; or the person lacks the role, whether or not there is such a project.
    """
    wanted, needed = project_of(name, parent), RIGHTS[method]
    project = next(iter(person.roles), OWN) if wanted is None else wanted
    role = person.roles.get(project)
    if role is None or (needed and ROLES.index(role) < ROLES.index(needed)):
        what = f"projects/{project}" if project else "a project of your own"
        has = f"your role in {what} is {role}" if role else f"you have no role in {what}"
        raise Refusal(
            "NOT_PERMITTED", f"{method} needs the role {needed or ROLES[0]}: {has}; ask the server's operator"
        )
    if project == OWN:
        proved = person.client.partition(":")[0] in ("name", "token", "oidc", "certificate")
        return Caller(person.client, person.client if proved else "", person.client)
    realm = f"{_REALM}{project}"
    return Caller(realm, realm, person.client, role == "admin")


def project_of(name: str, parent: str) -> str | None:
    """The project that a name is about, or without a name the one that a parent is; None: the caller's own.

    Raises:
        Refusal: it is no valid project.
    """
    field, text = ("name", name) if name else ("parent", parent)
    if not text or (name and not name.startswith("projects/")):
        return None
    match = (_IN_PROJECT if name else _AS_PARENT).fullmatch(text)
    if match is None:
        what = f"{text[:80]!r} is not of a project, projects/PROJECT, of a-z, 0-9 and -"
        raise Refusal("INVALID_REQUEST", what, field_path=field)
    return match[1]


def prefix_of(realm: str) -> str:
    """What the names of resources begin with: ``projects/P/``, or nothing in the project of a caller alone."""
    return f"projects/{realm.removeprefix(_REALM)}/" if realm.startswith(_REALM) else ""
