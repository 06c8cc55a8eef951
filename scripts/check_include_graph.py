#!/usr/bin/env python3
"""Checks every #include of include/, src/ and kernels/ against the layers of the architecture.

    check_include_graph.py [--root REPOSITORY]   exits 1 and lists every include that points up or sideways
    check_include_graph.py --self-test           plants violations in a scratch tree and expects to find each of them

A module may include itself and the modules that LAYERS names for it, which all lie in lower rows.
"""

import argparse
import pathlib
import re
import sys
import tempfile

# The pure modules: state machines that a simulator runs, so they see no device, no bytes on a wire, no kernel.
PURE_BELOW_SCHED = {"include", "base", "kv", "text", "cost"}
PURE_BELOW_ENGINE = {"include", "base", "kv", "cost", "sched", "handoff"}
PURE_BELOW_FRONT = {"include", "base", "text", "cost", "route"}
PURE = PURE_BELOW_SCHED | PURE_BELOW_ENGINE | PURE_BELOW_FRONT | {"engine", "front"}

LAYERS = {
    "include": set(),
    "base": {"include"},
    "kernels": {"include"},
    "kv": {"include", "base"},
    "text": {"include", "base"},
    "cost": {"include", "base"},
    "credentials": {"include", "base"},
    "device": {"include", "base", "kernels"},
    "sched": PURE_BELOW_SCHED,
    "handoff": PURE_BELOW_SCHED,
    "route": PURE_BELOW_SCHED,
    "transport": {"include", "base", "kernels", "kv", "device", "text", "cost", "credentials"},
    "comm": {"include", "base", "kernels", "kv", "device", "text", "cost"},
    "model": {"include", "base", "kernels", "kv", "device", "text", "cost"},
    "runner": {"include", "base", "kernels", "device", "model"},
    "engine": PURE_BELOW_ENGINE,
    "front": PURE_BELOW_FRONT,
    "sim": PURE,
    "rpc": PURE | {"credentials"},
    "http": PURE | {"credentials"},
}
# src/app wires everything, so it may include every module.
LAYERS["app"] = set(LAYERS)

# Arithmetic that the fake transport and the simulator share; its target links no transport.
SIM_SEES = "src/transport/fault_policy.h"

# gRPC and protobuf are seen only where messages are coded, in the transport that runs over gRPC, and in the wiring.
SEES_RPC = ("src/rpc/", "src/app/", "src/transport/grpc/")
RPC_HEADER = re.compile(r"^(grpc|grpcpp|google/protobuf)/|\.pb\.h$")
# One module handles keys and certificates.
SEES_OPENSSL = "src/credentials/"
OPENSSL_HEADER = re.compile(r"^openssl/")

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
STANDARD_HEADER = re.compile(r"^[a-z_0-9]+$")
SOURCES = {".h", ".hpp", ".cuh", ".inc", ".cc", ".cpp", ".c", ".cu"}


def module_of(path):
    """'include', 'kernels' or the directory under src; None outside them."""
    parts = path.parts
    if parts[0] in ("include", "kernels"):
        return parts[0]
    return parts[1] if parts[0] == "src" and len(parts) > 2 else None


def resolve(root, source, name):
    """The file of this repository that an include names, relative to the root, or None."""
    for base in (source.parent, pathlib.Path("include"), pathlib.Path("src"), pathlib.Path()):
        try:
            target = (root / base / name).resolve().relative_to(root)
        except ValueError:
            continue
        if (root / target).is_file() and target.parts[0] in ("include", "src", "kernels"):
            return target
    return None


def complaint(root, source, quoted, name):
    """Why this include is wrong, or None."""
    module = module_of(source)
    if RPC_HEADER.search(name):
        allowed = str(source).startswith(SEES_RPC)
        return None if allowed else "gRPC and protobuf are for " + ", ".join(SEES_RPC)
    if OPENSSL_HEADER.search(name):
        return None if str(source).startswith(SEES_OPENSSL) else "OpenSSL is for " + SEES_OPENSSL
    target = resolve(root, source, name)
    if target is None:
        if quoted:
            return "quoted, but no file of include/, src/ or kernels/ (system headers go in <>)"
        if module == "include" and not STANDARD_HEADER.match(name):
            return "include/ uses only the C++ standard library"
        return None
    other = module_of(target)
    if module == "sim" and str(target) == SIM_SEES:
        return None
    if other == module or other in LAYERS[module]:
        return None
    return f"{module} may include {', '.join(sorted(LAYERS[module])) or 'only itself'}; not {other}"


def violations(root):
    root = root.resolve()
    found = []
    for top in ("include", "src", "kernels"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in SOURCES or not path.is_file():
                continue
            source = path.relative_to(root)
            module = module_of(source)
            if module not in LAYERS:
                found.append(f"{source}: '{module or source.name}' is not a module of the layer table")
                continue
            text = path.read_text(encoding="utf-8", errors="replace")
            for match in INCLUDE.finditer(text):
                reason = complaint(root, source, match[1] is not None, match[1] or match[2])
                if reason:
                    line = text.count("\n", 0, match.start()) + 1
                    found.append(f"{source}:{line}: {match[0].strip()}: {reason}")
    return found


PLANTED = {  # file -> (its include lines, whether that is a violation)
    "include/baton/status.h": [("#include <string>", False)],
    "include/baton/ids.h": [('#include "baton/status.h"', False), ('#include "base/log.h"', True),
                            ("#include <nlohmann/json.hpp>", True)],
    "src/base/log.h": [('#include "baton/status.h"', False), ("#include <spdlog/spdlog.h>", False),
                       ('#include "kv/pool.h"', True)],
    "src/kv/pool.h": [('#include "base/log.h"', False), ('#include "kv/table.h"', False),
                      ('#include "sched/scheduler.h"', True), ('#include "cost/model.h"', True)],
    "src/kv/table.h": [('#include "pool.h"', False), ('  #  include "../sched/scheduler.h"', True)],
    "src/cost/model.h": [('#include "device/cpu.h"', True)],
    "src/device/cpu.h": [('#include "kernels/reference/gemm.h"', False)],
    "src/sched/scheduler.h": [('#include "kv/pool.h"', False), ("#include <kv/table.h>", False),
                              ('#include "device/cpu.h"', True), ('#include "handoff/ticket.h"', True)],
    "src/handoff/ticket.h": [('#include "kv/pool.h"', False), ('#include "baton/v1/inference.pb.h"', True)],
    "src/engine/core.cc": [('#include "sched/scheduler.h"', False), ('#include "runner/runner.h"', True),
                           ('#include "front/front.h"', True)],
    "src/front/front.h": [("#include <grpcpp/grpcpp.h>", True), ('#include "engine/core.h"', True)],
    "src/runner/runner.h": [('#include "device/cpu.h"', False), ('#include "kv/pool.h"', True)],
    "src/rpc/service.h": [('#include "front/front.h"', False), ("#include <grpcpp/grpcpp.h>", False),
                          ('#include "baton/v1/inference.pb.h"', False), ('#include "runner/runner.h"', True),
                           ('#include "credentials/issue.cc"', False)],
    "src/sim/sim.h": [('#include "front/front.h"', False), ('#include "rpc/service.h"', True)],
    "src/transport/grpc/stream.h": [("#include <grpcpp/grpcpp.h>", False)],
    "src/transport/ucx/ucx.h": [("#include <ucp/api/ucp.h>", False), ("#include <grpcpp/grpcpp.h>", True)],
    "src/credentials/issue.cc": [("#include <openssl/x509.h>", False), ('#include "text/utf8.h"', True)],
    "src/text/utf8.h": [("#include <openssl/sha.h>", True)],
    "src/app/main.cc": [('#include "runner/runner.h"', False), ('#include "nowhere.h"', True)],
    "kernels/reference/gemm.h": [('#include "baton/status.h"', False), ("#include <immintrin.h>", False),
                                 ('#include "base/log.h"', True)],
}


def self_test():
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch)
        expected = set()
        for name, lines in PLANTED.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("// A comment that mentions #include \"sched/scheduler.h\"\n\n" +
                            "".join(line + "\n" for line, wrong in lines))
            expected |= {f"{name}:{number}" for number, (line, wrong) in enumerate(lines, start=3) if wrong}
        (root / "src/engine/core.h").write_text("#pragma once\n")
        (root / "src/unknown").mkdir()
        (root / "src/unknown/x.h").write_text("#pragma once\n")
        expected.add("src/unknown/x.h")
        found = {re.match(r"[^:]+(:\d+)?", line)[0] for line in violations(root)}
    for line in sorted(expected - found):
        print(f"self-test: planted at {line}, not found")
    for line in sorted(found - expected):
        print(f"self-test: {line} is allowed, but was reported")
    return 0 if found == expected else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        return self_test()
    found = violations(args.root)
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
