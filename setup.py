"""Compile the kernels into what is installed. All else is pyproject.toml.

``make wheel`` builds wheels with which nobody needs a compiler: the kernels are compiled once for each level of
processors, and kernels/compiler.py chooses one at load. They use the OpenMP that PyTorch brings, and so link to none.
``pip install .`` compiles for its own processor alone, if there is a compiler. An editable installation compiles at
first use.
"""

import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

WHEEL_ENV_VAR = "REVERIE_WHEEL"
FLAGS = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-fopenmp"]
X86 = {"x86-64-v3": ["-march=x86-64-v3"], "x86-64-v4": ["-march=x86-64-v4", "-mprefer-vector-width=512"]}
LEVELS = {"x86_64": X86, "aarch64": {"aarch64": ["-march=armv8.2-a"]}}


class WithKernels(build_py):
    """Copies the package, then compiles the kernels into it."""

    def run(self) -> None:
        """Compile for every level of this architecture in a wheel for others, else for this processor."""
        super().run()
        if WHEEL_ENV_VAR not in os.environ:
            if not self.editable_mode:
                code = f"import sys; sys.path.insert(0, {str(Path(self.build_lib).absolute())!r}); "
                code += "from reverie.kernels.compiler import compile_for_installation as f; f()"
                subprocess.run([sys.executable, "-B", "-c", code], check=False)
            return
        room = Path(self.build_lib) / "reverie" / "kernels"
        (room / "built").mkdir(parents=True, exist_ok=True)
        compiler = shlex.split(os.environ.get("CC", "cc"))
        sources = sorted(map(str, (room / "csrc").glob("*.c")))
        for level, flags in LEVELS[platform.machine()].items():
            objects = []
            for source in sources:
                objects.append(source.removesuffix(".c") + ".o")
                subprocess.run([*compiler, *FLAGS, *flags, "-c", source, "-o", objects[-1]], check=True)
            subprocess.run(
                [*compiler, "-shared", *objects, "-o", str(room / "built" / f"{level}.so"), "-lm"], check=True
            )
            for made in objects:
                os.remove(made)


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3, but for one platform if it has compiled kernels."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag, without the version of Python; of Linux, with the glibc that the kernels need."""
        tag = super().get_tag()[2]
        kernels = sorted((Path(self.bdist_dir) / "reverie" / "kernels" / "built").glob("*.so"))
        needed = {version for file in kernels for version in re.findall(rb"GLIBC_(\d+)\.(\d+)", file.read_bytes())}
        if tag.startswith("linux_") and needed:
            major, minor = max((int(major), int(minor)) for major, minor in needed)
            tag = tag.replace("linux_", f"manylinux_{major}_{minor}_", 1)
        return ("py3", "none", tag)


class KernelDistribution(Distribution):
    """A distribution that knows that compiled kernels are not pure Python."""

    def has_ext_modules(self) -> bool:
        """Return True, also where the compilation fails later."""
        return True


setup(distclass=KernelDistribution, cmdclass={"build_py": WithKernels, "bdist_wheel": PlatformWheel})
