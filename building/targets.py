"""The platforms that kernels are built for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A platform.

    Attributes:
        tag: of the wheel.
        triple: LLVM's name.
        cpu: LLVM's name of the least processor.
        zig: Zig's name.
        options: what the linker is told besides.
    """

    tag: str
    triple: str
    cpu: str
    zig: str
    options: tuple[str, ...] = ("-Wl,--no-undefined",)


_WINDOWS: tuple[str, ...] = ()
_MACOS = ("-Wl,-install_name,@rpath/kernels.dylib",)  # else the builder's path would be in the file

TARGETS = {
    "linux-x86_64": Target(
        "manylinux_2_17_x86_64.musllinux_1_1_x86_64", "x86_64-unknown-linux-gnu", "x86-64", "x86_64-linux-gnu.2.17"
    ),
    "linux-aarch64": Target(
        "manylinux_2_17_aarch64.musllinux_1_1_aarch64", "aarch64-unknown-linux-gnu", "generic", "aarch64-linux-gnu.2.17"
    ),
    "darwin-arm64": Target("macosx_11_0_arm64", "arm64-apple-macosx11.0", "apple-m1", "aarch64-macos.11.0", _MACOS),
    "darwin-x86_64": Target("macosx_10_13_x86_64", "x86_64-apple-macosx10.13", "x86-64", "x86_64-macos.10.13", _MACOS),
    # not -msvc: that wants _fltused of Microsoft's runtime
    "win32-amd64": Target("win_amd64", "x86_64-pc-windows-gnu", "x86-64", "x86_64-windows-gnu", _WINDOWS),
    "win32-arm64": Target("win_arm64", "aarch64-pc-windows-gnu", "generic", "aarch64-windows-gnu", _WINDOWS),
}


def library_name(target: str) -> str:
    """What the library is called on a platform."""
    return "kernels" + {"win32": ".dll", "darwin": ".dylib"}.get(target.partition("-")[0], ".so")
