"""Builds the compiled modules; the rest of the package is described in `pyproject.toml`.

Without a C compiler the rest is installed: only servers and simulations need these modules.
"""

from tempfile import TemporaryDirectory

from setuptools import Extension, setup

COMPILED = "protocol.oracles.report_counting_kernel", "protocol.sketches.iblt.peeling_kernel"

with TemporaryDirectory() as folder:  # of this build only: `build` may hold deleted modules
    setup(
        ext_modules=[
            Extension(
                name,
                [f"{name.replace('.', '/')}.pyx"],
                depends=["protocol/mixing.pxd"],
                optional=True,
            )
            for name in COMPILED
        ],
        options={"build": {"build_base": folder}},
    )
