"""Write ``augment/v1``, and the OpenAPI document that the server returns, anew from the .proto files beside this one.

    python proto/generate.py           write it
    python proto/generate.py --check   exit 1 and name the files that differ

The compiler comes from an environment of its own (``.venv/proto``, made on first use): generated code demands a
protobuf at least as new as its compiler, and this one is old enough for what people have installed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from google.protobuf import descriptor_pb2
from openapi import document

PROTO = Path(__file__).resolve().parent
ROOT = PROTO.parent
TARGET = ROOT / "augment" / "v1"
OPENAPI = ROOT / "server" / "augment_server" / "api" / "http" / "openapi.json"
ENVIRONMENT = ROOT / ".venv" / "proto"
TOOLS = ("grpcio-tools==1.66.2", "protobuf==5.27.5", "mypy-protobuf==3.6.0", "setuptools<81")
INIT = '''"""The service's messages and stubs, made of ``proto/augment/v1`` by ``proto/generate.py``; never edited.

``from augment.v1 import resources_pb2, service_pb2, service_pb2_grpc``
"""
'''


def main() -> int:
    """Generate, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if anything differs")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        compile_into(Path(folder))
        made = {TARGET / path.name: path.read_bytes() for path in (Path(folder) / "augment" / "v1").iterdir()}
        described = descriptor_pb2.FileDescriptorSet.FromString((Path(folder) / "descriptors").read_bytes())
    made[TARGET / "__init__.py"] = INIT.encode()
    made[OPENAPI] = document(described, "v1").encode()
    there = {path: path.read_bytes() for path in (*TARGET.glob("*.py*"), OPENAPI) if path.exists()}
    stale = sorted(path for path in made.keys() | there.keys() if made.get(path) != there.get(path))
    if check:
        for path in stale:
            sys.stderr.write(f"{path.relative_to(ROOT)} is not what proto/ says; run: python proto/generate.py\n")
        return 1 if stale else 0
    TARGET.mkdir(exist_ok=True)
    for path in stale:
        if path in made:
            path.write_bytes(made[path])
        else:
            path.unlink()
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    return 0


def compile_into(folder: Path) -> None:
    """Run the compiler on every .proto file of ours; ``google/api`` comes with googleapis-common-protos."""
    files = [str(path.relative_to(PROTO)) for path in sorted((PROTO / "augment").rglob("*.proto"))]
    services = [name for name in files if name.endswith("service.proto")]
    plugins = [f"--plugin={tool('protoc-gen-mypy')}", f"--plugin={tool('protoc-gen-mypy_grpc')}"]
    for kinds, inputs in (("python", "mypy"), files), (("grpc_python", "mypy_grpc"), services):
        outputs = [f"--{kind}_out={folder}" for kind in kinds]
        if inputs == files:
            outputs += ["--include_imports", "--include_source_info", f"--descriptor_set_out={folder / 'descriptors'}"]
        command = [tool("python"), "-m", "grpc_tools.protoc", "-I", ".", *plugins, *outputs, *inputs]
        result = subprocess.run(command, cwd=PROTO, capture_output=True, text=True)
        if result.returncode:
            raise SystemExit(result.stderr)


def tool(name: str) -> str:
    """A program of the compiler's environment, which is made if it is not there or not as :data:`TOOLS` says."""
    stamp = ENVIRONMENT / "tools.txt"
    if not stamp.exists() or stamp.read_text() != "\n".join(TOOLS):
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        pip = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *TOOLS], check=True)
        stamp.write_text("\n".join(TOOLS))
    return str(ENVIRONMENT / "bin" / name)


if __name__ == "__main__":
    sys.exit(main())
