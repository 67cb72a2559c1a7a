"""Makes the wheel and the source archive: for build-wheel, and for pip, which finds it through pyproject.toml (PEP 517).

The wheel carries libdsgd with Cap'n Proto, KJ and libuv hidden inside (DSGD_BUNDLE), and the `dsgd` tool. Its
extension module is for the stable ABI, so that one wheel serves every CPython from 3.11 on. Only the standard library is used.
"""

import base64
import gzip
import hashlib
import io
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Wheel and jar share the build folder, and so the Cap'n Proto that is built in it.
BUILD, PACKAGES = ROOT / "build" / "bundled", ROOT / "build" / "packages"
SWIG = (4, 2)  # the first that writes for the limited API
# Of the clone, in the source archive: all that a wheel is built from, and the script that installs what the build needs.
SOURCES = (".ci/prepare", "CMakeLists.txt", "LICENSE", "README.md", "bindings/CMakeLists.txt", "bindings/dsgd.i",
           "bindings/dsgd_handles.i", "bindings/python", ":!bindings/python/test-wheel", ":!bindings/python/tests", "capi", "core",
           "pkgconfig", "transport")  # fmt: skip
TIME = 315532800  # 1980-01-01, of every file in the source archive: the same files give the same bytes
ENTRY_POINTS = "[console_scripts]\ndsgd = dsgd.__main__:main\n"


def make_wheel(folder, output):
    """Builds in `folder` and returns the path of the wheel in `output`."""
    check_needs()
    with tempfile.TemporaryDirectory() as staging:
        build(folder.resolve(), pathlib.Path(staging))
        return pack(pathlib.Path(staging), output)


def make_sdist(output):
    """Writes the source archive into `output` and returns its path: tracked files of the clone, as they are in its working tree."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--", *SOURCES]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        listed = []
    names = [name for name in listed if name]
    if not names:
        fail(f"the source archive has the files that git tracks, and git lists none in '{ROOT}'; make the archive in a clone")
    files = {name: (ROOT / name).read_bytes() for name in names}
    pyproject = files["bindings/python/pyproject.toml"].decode()
    files["pyproject.toml"] = pyproject.replace('backend-path = ["."]', 'backend-path = ["bindings/python"]').encode()
    files["PKG-INFO"] = metadata(["LICENSE"]).encode()
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(f"dsgd-{version()}/{name}")
            entry.size = len(data)
            entry.mtime = TIME
            entry.mode = 0o755 if os.access(ROOT / name, os.X_OK) else 0o644
            archive.addfile(entry, io.BytesIO(data))
    output.mkdir(parents=True, exist_ok=True)
    sdist = output / f"dsgd-{version()}.tar.gz"
    sdist.write_bytes(gzip.compress(content.getvalue(), mtime=TIME))
    return sdist


# ---- The functions that pip calls


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return make_wheel(BUILD, pathlib.Path(wheel_directory)).name


def build_sdist(sdist_directory, config_settings=None):
    return make_sdist(pathlib.Path(sdist_directory)).name


# ---- The build


def fail(text):
    raise SystemExit(f"build-wheel: {text}")


def run(*command):
    # With ccache, the same objects in any folder: pip unpacks a source archive to a new one each time.
    environment = {**os.environ, "CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"}
    try:
        subprocess.run(command, check=True, env=environment)
    except (OSError, subprocess.CalledProcessError) as error:
        fail(f"'{shlex.join(command)}' failed: {error}" if isinstance(error, OSError) else
             f"'{shlex.join(command)}' ended with status {error.returncode}; its messages are above")  # fmt: skip


def swig():
    """The path of a SWIG that can write for the limited API: beside this Python, as in a virtual environment, in the clone's
    build/venv, where .ci/prepare puts it, or on the PATH."""
    for folder in (os.path.dirname(sys.executable), str(ROOT / "build" / "venv" / "bin"), *os.get_exec_path()):
        program = shutil.which("swig", path=folder)
        if program:
            said = subprocess.run([program, "-version"], capture_output=True, text=True).stdout
            version = re.search(r"SWIG Version (\d+)\.(\d+)", said)
            if version and (int(version[1]), int(version[2])) >= SWIG:
                return program
    return None


def check_needs():
    if sys.version_info < (3, 11) or sysconfig.get_config_var("Py_GIL_DISABLED"):
        fail(f"{sys.executable} is Python {sys.version.split(' (')[0]}; build with CPython 3.11 or later that is not free-threaded")
    missing = [] if swig() else ["swig 4.2 or newer (pip install swig)"]
    if not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists():
        missing.append(f"Python.h of {sys.executable}")
    missing += subprocess.run(
        ["bash", str(ROOT / "capi" / "bundle" / "build-deps"), "--missing"], check=True, capture_output=True, text=True
    ).stdout.split()
    if missing:
        fail(f"missing: {', '.join(missing)}; install with: .ci/prepare build core python packages")


def build(folder, staging):
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    switches = ["DSGD_BUNDLE=ON", "DSGD_PYTHON=ON", "DSGD_JAVA=OFF", "DSGD_TESTS=OFF", "DSGD_TOOLS=ON", "DSGD_SAMPLES=OFF"]
    run("cmake", "-S", str(ROOT), "-B", str(folder), *generator, "-DCMAKE_BUILD_TYPE=Release",
        f"-DPython3_EXECUTABLE={sys.executable}", f"-DDSGD_PYTHON_SWIG={swig()}", "-DDSGD_PYTHON_ABI3=ON", *(f"-D{switch}" for switch in switches),
        *shlex.split(os.environ.get("CMAKE_ARGS", "")))  # fmt: skip
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
    run("cmake", "--build", str(folder), "--target", "dsgd_python", "dsgd_tool", "--parallel", jobs)
    run("cmake", "--install", str(folder), "--component", "wheel", "--strip", "--prefix", str(staging))
    # A wheel has no links: of a library only the file that is asked for is kept, under that name.
    for library in list((staging / "dsgd").glob("libdsgd*.so.1")):
        content = library.read_bytes()
        for link in (staging / "dsgd").glob(f"{library.stem}*"):
            link.unlink()
        library.write_bytes(content)
        library.chmod(0o755)


# ---- The archive


def version():
    return re.search(r"project\(dsgd VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()).group(1)


def tag():
    """Of CPython from 3.11 on, and of systems that have at least the glibc of this one (PEP 600)."""
    major, minor = os.confstr("CS_GNU_LIBC_VERSION").removeprefix("glibc ").split(".")[:2]
    return f"cp311-abi3-manylinux_{major}_{minor}_{sysconfig.get_platform().removeprefix('linux-')}"


def metadata(licenses):
    return (
        "Metadata-Version: 2.4\n"
        "Name: dsgd\n"
        f"Version: {version()}\n"
        "Summary: Embeddable runtime for data-parallel stochastic gradient descent\n"
        + "".join(f"License-File: {name}\n" for name in licenses) +
        "Classifier: Operating System :: POSIX :: Linux\n"
        "Classifier: Programming Language :: Python :: 3 :: Only\n"
        "Classifier: Programming Language :: Python :: Implementation :: CPython\n"
        "Requires-Python: >=3.11\n"
        "Provides-Extra: numpy\n"
        'Requires-Dist: numpy; extra == "numpy"\n'
        "Description-Content-Type: text/markdown\n"
        "\n" + (HERE / "README.md").read_text()
    )


def pack(staging, output):
    """The archive with its RECORD; the same files give the same bytes."""
    info = f"dsgd-{version()}.dist-info"
    files = {str(path.relative_to(staging)): path.read_bytes() for path in sorted(staging.rglob("*")) if path.is_file()}
    executable = {name for name in files if os.access(staging / name, os.X_OK)}
    licenses = [name for name in files if name.startswith("licenses/")]  # of dsgd, and of the libraries inside
    for name in licenses:
        files[f"{info}/{name}"] = files.pop(name)
    files[f"{info}/METADATA"] = metadata([name.partition("/")[2] for name in licenses]).encode()
    files[f"{info}/entry_points.txt"] = ENTRY_POINTS.encode()
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: dsgd build-wheel\nRoot-Is-Purelib: false\nTag: {tag()}\n"
    ).encode()
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()},{len(content)}\n"
        for name, content in files.items()
    )
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = output / f"dsgd-{version()}-{tag()}.whl"
    output.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100755 if name in executable else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return wheel
