"""The container file and the manifests start the service with flags that it has; and what buf finds in an API."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from postgres_cluster import cluster
from serving_process import PATIENCE_S, environment, serving

from augment.core.toml import parse_toml
from augment.v1 import resources_pb2, service_pb2
from augment_server.ops.main import serve, work
from augment_server.storage.storage import Storage

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
MANIFEST = KUBERNETES / "base" / "augment.yaml"
CONTAINERFILE = ROOT / "deploy" / "Containerfile"


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    """The objects by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text())}


@pytest.fixture(scope="module")
def pod(manifests: dict[str, Any]) -> Any:
    return manifests["Deployment"]["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def container(pod: Any) -> Any:
    (value,) = pod["containers"]
    return value


def parsed(args: list[str]) -> dict[str, Any]:
    """What the flags say, as the command reads them."""
    return {"serve": serve, "work": work}[args[0]].make_context(args[0], args[1:]).params


def instructions(name: str) -> list[str]:
    text = CONTAINERFILE.read_text().replace("\\\n", " ")
    return [line.partition(" ")[2] for line in text.splitlines() if line.startswith(f"{name} ")]


def test_a_flag_that_does_not_exist_is_found_out() -> None:
    with pytest.raises(click.NoSuchOption):
        parsed(["serve", "--max-jobs=2"])


def test_flags_of_the_container() -> None:
    (args,) = instructions("CMD")
    said = parsed(json.loads(args))
    assert said["insecure_listen"]
    assert said["state_dir"].is_relative_to(*instructions("VOLUME"))
    ports = [said[name].rpartition(":")[2] for name in ("listen", "metrics_listen")]
    assert [" ".join(ports)] == instructions("EXPOSE")


def test_the_container_copies_what_there_is_and_runs_as_a_user() -> None:
    for line in instructions("COPY"):
        if not line.startswith("--from"):
            for source in line.split()[:-1]:
                assert (ROOT / source).exists(), source
    assert all(user.split(":")[0].isdigit() and user != "0:0" for user in instructions("USER"))
    ignored = (ROOT / ".containerignore").read_text()
    assert ignored == (ROOT / ".dockerignore").read_text()
    for source in ("augment", "server", "pyproject.toml", "README.md", "LICENSE"):
        assert f"!{source}\n" in ignored


def test_flags_of_the_pod(pod: Any, container: Any) -> None:
    said = parsed(container["args"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert said["listen"].endswith(f":{ports['grpc']}")
    assert said["metrics_listen"].endswith(f":{ports['metrics']}")
    mounts = {volumemount["mountPath"]: volumemount["name"] for volumemount in container["volumeMounts"]}
    assert any(said["state_dir"].is_relative_to(path) for path in mounts)
    assert str(said["token_file"].parent) in mounts
    assert {volume["name"] for volume in pod["volumes"]} == set(mounts.values())
    assert said["grace_s"] + 10 < pod["terminationGracePeriodSeconds"]


def test_the_pod_fits_its_memory_and_its_disk(manifests: dict[str, Any], container: Any) -> None:
    said = parsed(container["args"])
    memory = gib(container["resources"]["limits"]["memory"])
    assert said["max_running_jobs"] * said["max_job_memory_bytes"] < memory
    disk = manifests["PersistentVolumeClaim"]["spec"]["resources"]["requests"]["storage"]
    assert said["max_stored_bytes"] < gib(disk)


def test_one_server_at_a_time_has_the_directory(manifests: dict[str, Any]) -> None:
    assert manifests["Deployment"]["spec"]["replicas"] == 1
    assert manifests["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}


def test_the_pod_has_no_rights(pod: Any, container: Any) -> None:
    assert pod["securityContext"]["runAsNonRoot"]
    assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" in instructions("USER")
    assert not pod["automountServiceAccountToken"]
    rights = container["securityContext"]
    assert rights["readOnlyRootFilesystem"]
    assert not rights["allowPrivilegeEscalation"]
    assert rights["capabilities"] == {"drop": ["ALL"]}


def test_probes_and_selectors_lead_somewhere(manifests: dict[str, Any], container: Any) -> None:
    names = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert container["readinessProbe"]["grpc"]["port"] == names["grpc"]
    assert container["startupProbe"]["grpc"]["port"] == names["grpc"]
    liveness = container["livenessProbe"]
    assert liveness["grpc"]["port"] == names["grpc"]
    # while it drains it is not served, and must not be killed for that
    patience_s = liveness["periodSeconds"] * liveness["failureThreshold"]
    assert patience_s > manifests["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert manifests["Service"]["spec"]["selector"].items() <= labels.items()
    assert manifests["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert manifests["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    for port in manifests["Service"]["spec"]["ports"]:
        assert port["targetPort"] in names


@pytest.fixture(scope="module")
def several() -> list[dict[str, Any]]:
    """The objects for several fronts and workers, as kustomize makes them."""
    return rendered("several")


def rendered(name: str) -> list[dict[str, Any]]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    ended = run("kubectl", "kustomize", KUBERNETES / name)
    assert (ended.returncode, ended.stderr) == (0, "")
    return list(yaml.safe_load_all(ended.stdout))


@pytest.mark.parametrize("name", ["base", "several"])
def test_objects_are_valid(name: str) -> None:
    """Those of Kubernetes itself, strictly; of KEDA and the Prometheus operator it has no schemas."""
    judge = pytest.importorskip("kubernetes_validate")
    others = []
    for each in rendered(name):
        try:
            judge.validate(each, "1.37", strict=True)
        except judge.utils.SchemaNotFoundError:
            others.append(each["kind"])
    assert others == (["ScaledObject", "TriggerAuthentication", "ServiceMonitor"] if name == "several" else [])


def test_fronts_and_workers_are_started_with_flags_that_they_have(several: list[dict[str, Any]]) -> None:
    pods = {each["metadata"]["name"]: each["spec"] for each in several if each["kind"] == "Deployment"}
    front, worker = (pods[name]["template"]["spec"] for name in ("augment", "augment-work"))
    said, of_worker = (parsed(pod["containers"][0]["args"]) for pod in (front, worker))
    assert pods["augment"]["replicas"] == 2
    assert "replicas" not in pods["augment-work"]  # KEDA says how many
    assert (said["role"], said["catalog"], said["store"]) == ("front", of_worker["catalog"], of_worker["store"])
    for pod, flags in ((front, said), (worker, of_worker)):
        assert flags["grace_s"] + 10 < pod["terminationGracePeriodSeconds"]
        assert all("@sha256:" in each["image"] for each in pod["containers"])
        assert all(each["securityContext"]["readOnlyRootFilesystem"] for each in pod["containers"])
        assert pod["securityContext"]["runAsNonRoot"]
        assert not any("persistentVolumeClaim" in volume for volume in pod["volumes"])
    memory = gib(worker["containers"][0]["resources"]["limits"]["memory"])
    assert of_worker["max_running_jobs"] * of_worker["max_job_memory_bytes"] < memory
    assert "PersistentVolumeClaim" not in {each["kind"] for each in several}
    (scaling,) = (each["spec"]["triggers"][0]["metadata"] for each in several if each["kind"] == "ScaledObject")
    assert int(scaling["targetQueryValue"]) == of_worker["max_running_jobs"]


def test_policies_and_selectors_of_several_lead_somewhere(several: list[dict[str, Any]]) -> None:
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in several if each["kind"] == "Deployment"]
    services = {each["metadata"]["name"]: each for each in several if each["kind"] == "Service"}
    (monitor,) = (each["spec"]["selector"]["matchLabels"] for each in several if each["kind"] == "ServiceMonitor")
    assert monitor == services["augment-metrics"]["metadata"]["labels"]
    for service in services.values():
        assert service["spec"]["selector"] in labels
    policies = {each["metadata"]["name"]: each["spec"] for each in several if each["kind"] == "NetworkPolicy"}
    (chosen,) = policies["augment-egress"]["podSelector"]["matchExpressions"]
    assert [{chosen["key"]: value} for value in chosen["values"]] == labels
    assert policies["augment-work"] == {"podSelector": {"matchLabels": labels[1]}, "policyTypes": ["Ingress"]}


def test_workers_are_counted_by_the_catalog(several: list[dict[str, Any]], tmp_path: Path) -> None:
    """Waiting and running jobs, and the traces of whole jobs, in a real one."""
    (metadata,) = (each["spec"]["triggers"][0]["metadata"] for each in several if each["kind"] == "ScaledObject")
    with cluster() as database:
        storage = Storage(tmp_path, catalog=database.url("scaling"))
        try:
            with storage.writing() as db:
                columns = "id, client, realm, request_id, spec, file_name, content, state, created_ns, queued_ns"
                insert = f"INSERT INTO jobs ({columns}) VALUES (?, '', '', '', ?, '', '', ?, 0, 0)"
                db.executemany(insert, [(str(at), b"", state) for at, state in enumerate((1, 1, 2, 3, 4, 2))])
                db.execute("INSERT INTO wholes VALUES ('5', 6, 2)")
            row = storage.row(metadata["query"])
            assert row
            assert row[0] == 3 + 6 + 2
        finally:
            storage.close()


def test_the_compose_file_is_valid() -> None:
    """By the specification's schema, and its flags by the commands. No container engine runs it here."""
    spec = pytest.importorskip("compose_spec")
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    spec.PyCompose.from_json(json.dumps(compose)).validate()
    services = compose["services"]
    for name in ("front", "work"):
        said = parsed(services[name]["command"])
        assert services[name]["stop_grace_period"].endswith("s")
        assert int(services[name]["stop_grace_period"][:-1]) > said["grace_s"] + 10
        assert said["store"] == "s3://augment/state"
    needed = {other for each in services.values() for other in each.get("depends_on", ())}
    assert needed <= set(services)
    outside = [port for each in services.values() for port in each.get("ports", ())]
    assert outside == ["127.0.0.1:50051:50051"]


def test_recipes_start_workers_with_flags_that_they_have() -> None:
    """Those for Slurm and Dask."""
    page = (ROOT / "docs" / "deployment.md").read_text()
    (slurm,) = re.findall(r"exec (augment work .*?)```", page.replace("\\\n", ""), re.DOTALL)
    (dask,) = re.findall(r"command = (\[.*?\])", page, re.DOTALL)
    for args in (shlex.split(slurm.replace("$SLURM_CPUS_PER_TASK", "4")), ast.literal_eval(dask)):
        said = parsed(args[1:])
        assert (said["store"], said["catalog"][:13]) == ("s3://augment/state", "postgresql://")
        assert 0 < said["idle_exit_s"] <= 300


def test_the_container_asks_how_its_server_is(tmp_path: Path) -> None:
    (check,) = instructions("HEALTHCHECK")
    _, module, address = json.loads(check.partition("CMD ")[2])[1:]
    (args,) = instructions("CMD")
    assert parsed(json.loads(args))["listen"].rpartition(":")[2] == address.rpartition(":")[2]
    with serving(tmp_path / "state") as server:
        assert probed(module, server.address) == 0
        gone = server.address
    assert probed(module, gone) == 1


def probed(module: str, address: str) -> int:
    command = [sys.executable, "-m", module, address]
    return subprocess.run(command, env=environment(), timeout=PATIENCE_S).returncode


def test_the_container_installs_what_the_tests_ran_with() -> None:
    """Each requirement of the service and of the library has a version, which it allows."""
    lines = (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    library, server = (parse_toml((ROOT / name / "pyproject.toml").read_text()) for name in ("", "server"))
    wanted = [
        *library["project"]["dependencies"], *library["project"]["optional-dependencies"]["client"],
        *server["project"]["dependencies"],
        *(dependency for extra in ("otel", "http", "postgres", "store", "oidc")
          for dependency in server["project"]["optional-dependencies"][extra]),
    ]  # fmt: skip
    for text in wanted:
        requirement = Requirement(text)
        if not requirement.name.startswith("kineto-augment") and (
            not requirement.marker or requirement.marker.evaluate()
        ):
            assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), text


def gib(quantity: str) -> int:
    match = re.fullmatch(r"(\d+)Gi", quantity)
    return int(match[1]) << 30


BESIDE = Path(sys.executable).parent / "buf"


@pytest.fixture(scope="module")
def buf() -> str:
    result = str(BESIDE) if BESIDE.exists() else shutil.which("buf")
    if result is None:
        pytest.skip("buf is not installed (package buf-bin)")
    return result


def run(*command: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(each) for each in command], cwd=cwd, capture_output=True, encoding="utf-8", timeout=600)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "proto", tmp_path / "proto", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    return tmp_path / "proto"


def change(proto: Path, name: str, *changes: tuple[str, str]) -> None:
    path = proto / "augment" / "v1" / name
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def test_lint_finds_what_is_wrong(buf: str, copy: Path) -> None:
    change(copy, "service.proto", ('  // "jobs/ID".\n', ""), ("service AugmentService", "service Augment"))
    change(copy, "resources.proto", ("// The trace.\n", "\n"))
    ended = run(buf, "lint", copy)
    assert ended.returncode != 0
    assert 'should be suffixed with "Service"' in ended.stdout
    assert "should have a non-empty comment" in ended.stdout


def test_what_breaks_callers_is_found(buf: str, copy: Path) -> None:
    change(copy, "resources.proto", ("  int64 received_bytes = 4 [", "  int64 received_bytes = 40 ["))
    ended = run(buf, "breaking", copy, "--against", ROOT / "proto")
    assert ended.returncode != 0
    assert 'field "4" with name "received_bytes"' in ended.stdout


@pytest.mark.parametrize(("file", "outer"), [(resources_pb2, "ResourcesProto"), (service_pb2, "ServiceProto")])
def test_where_the_code_of_others_lies(file: Any, outer: str) -> None:
    """Generated code in other languages is imported by these names, so they stay."""
    options = file.DESCRIPTOR.GetOptions()
    assert {field.name: value for field, value in options.ListFields()} == {
        "csharp_namespace": "Augment.V1",
        "go_package": "github.com/kineto-augment/kineto-augment/proto/augment/v1;augmentv1",
        "java_multiple_files": True,
        "java_outer_classname": outer,
        "java_package": "io.github.kineto_augment.v1",
    }


@pytest.mark.parametrize(("language", "plugin", "made"), [
    ("go", "protoc-gen-go", "github.com/kineto-augment/kineto-augment/proto/augment/v1/resources.pb.go"),
    ("java", "", "io/github/kineto_augment/v1/Job.java"),
    ("csharp", "", "Resources.cs"),
])  # fmt: skip
def test_others_compile_it_as_it_is(language: str, plugin: str, made: str, tmp_path: Path) -> None:
    """With nothing but protoc, and no option of theirs."""
    for program in filter(None, ("protoc", plugin)):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (Debian: protobuf-compiler, protoc-gen-go)")
    files = ("augment/v1/resources.proto", "augment/v1/service.proto")
    ended = run("protoc", "-I.", f"--{language}_out={tmp_path}", *files, cwd=ROOT / "proto")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / made).exists()
