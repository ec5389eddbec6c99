#!/bin/bash
# Cross-compiles the kernels for 64-bit Arm and runs their tests under qemu's user emulation.
#
#   tools/test_arm.sh [FOLDER] [PYTEST ARGUMENTS]
#
# On Debian 12 (other releases have another Python: set ARM_PYTHON), with
#   apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
# and a Python of the same version on PATH that has cython, setuptools, numpy and pip. Everything else is kept in
# FOLDER (/tmp/oxillama-arm): an arm64 Python unpacked from Debian's packages, its wheels, a copy of the sources.
# Nothing is installed in the system. ARM_CC is another cross compiler, ARM_CPU another CPU to emulate, and ARM_WHEEL
# a wheel that is tested in place of the sources (tools/build_wheel.py --machine aarch64).
set -euo pipefail

folder=$(realpath -m "${1:-/tmp/oxillama-arm}")
shift || true
version=${ARM_PYTHON:-3.11}
compiler=${ARM_CC:-aarch64-linux-gnu-gcc}
root=$folder/root site=$folder/site source=$folder/source package=$folder/source
wheel=${ARM_WHEEL:+$(realpath "$ARM_WHEEL")}
cd "$(dirname "$0")/.."

fetch_python() {
    local apt=(apt-get -q -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User="$(id -un)"
        -o Dir::State::lists="$folder/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$folder/cache")
    mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial" "$root"
    "${apt[@]}" update
    "${apt[@]}" -y --no-install-recommends --download-only install \
        "python$version" "libpython$version-dev" libgomp1 libstdc++6
    for package in "$folder"/cache/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
}

fetch_wheels() {
    python -m pip install -q --target "$site" --python-version "$version" --only-binary=:all: \
        --platform manylinux_2_28_aarch64 --platform manylinux2014_aarch64 --platform manylinux_2_17_aarch64 \
        numpy tokenizers jinja2 tqdm blake3 docstring-parser lazy-loader prometheus-client pytest pytest-xdist hypothesis gguf jsonschema
}

copy_sources() {
    rm -rf "$source/oxillama" "$source/tests"
    mkdir -p "$source"
    git ls-files -z -co --exclude-standard | tar -c --null -T - | tar -x -C "$source"
}

build() {
    (cd "$source" && OXILLAMA_MACHINE=aarch64 CC=$compiler LDSHARED="$compiler -shared" \
        SETUPTOOLS_EXT_SUFFIX=".cpython-${version/./}-aarch64-linux-gnu.so" \
        CFLAGS="-I$site/numpy/_core/include -I$root/usr/include/python$version -idirafter $root/usr/include" \
        python setup.py -q build_ext --inplace)
}

unpack() {
    package=$folder/wheel
    rm -rf "$package" "$source/oxillama"
    python -m zipfile -e "$wheel" "$package"
}

emulated() {
    QEMU_LD_PREFIX=$root PYTHONHOME=$root/usr PYTHONPATH=$package:$source:$site PYTHONDONTWRITEBYTECODE=1 \
        qemu-aarch64 -cpu "${ARM_CPU:-max}" "$root/usr/bin/python$version" "$@"
}

[ -x "$root/usr/bin/python$version" ] || fetch_python
[ -d "$site/pytest" ] || fetch_wheels
copy_sources
if [ -n "$wheel" ]; then unpack; else build; fi

cd "$source"
emulated -c 'import platform; from oxillama._kernels import targets; print(platform.machine(), targets())'
ARM_CPU=cortex-a72 emulated -c 'from oxillama._kernels import targets as t; assert "asimddp" in t()["neon"], t()'
ARM_CPU=neoverse-n1 emulated -c 'from oxillama._kernels import targets as t; assert "i8mm" in t()["i8mm"] and not t()["neon"], t()'
for target in i8mm neon portable; do
    OXILLAMA_TARGET=$target emulated tools/print_bits.py
done | tee "$folder/bits"
[ "$(sort -u "$folder/bits" | wc -l)" = 1 ]
if [ $# = 0 ]; then
    set -- tests/_kernels/test_{targets,vector,routing,linear,pack,quantize_kernel,attention}.py \
        tests/_kernels/test_{attention_options,flash_attention}.py tests/models/test_{rope,parity}.py \
        tests/engine/sampling/test_{sampling,sampler_vectors}.py tests/models/weights/test_compute.py tests/sessions/test_recorded.py \
        tests/test_{formats,demo}.py
fi
emulated -m pytest -n0 -p no:cacheprovider "$@"
