"""Builds the compiled modules; the rest of the package is described in `pyproject.toml`.

Without a C compiler the build warns and goes on: numpy then does what these modules do, slower.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from setuptools import Extension, setup

with TemporaryDirectory() as folder:  # of this build only: `build` may hold deleted modules
    setup(
        ext_modules=[
            Extension(
                ".".join(path.with_suffix("").parts),
                [str(path)],
                depends=["protocol/mixing.pxd"],
                extra_compile_args=["-g0"],  # symbols for debuggers took 2 MB
                optional=True,
            )
            for path in sorted(Path("protocol").rglob("*.pyx"))
        ],
        options={"build": {"build_base": folder}},
    )
