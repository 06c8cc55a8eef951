#!/usr/bin/env python3
"""The figures of the README, in one run: figures.py BATON MODEL [--llama-bench PATH] [--rounds N]

Start to first token (unified; router + prefill + decode), and what splitting costs on two cores: time to first token
and the gap from token 1 to token 2 of 1P1D, a core each, beside one unified worker on one core, alternating. With
--llama-bench also that peer's prefill and decode rates on the same file. Python's standard library only; loopback only.
"""
import argparse
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import time


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, baton, model, args, cores):
        self.address = f"127.0.0.1:{free_port()}"
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            ["taskset", "-c", cores, baton, "up", model, "--listen", self.address, *args],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
        for line in self.process.stdout:
            if "ready" in line:
                break
        self.ready = time.monotonic() - self.began
        os.set_blocking(self.process.stdout.fileno(), False)

    def drain_output(self):
        try:
            while self.process.stdout.read(65536):
                pass
        except (BlockingIOError, TypeError):
            pass

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)


def ask(baton, server, ids, tokens):
    """Times of the answer's pieces as they reach the client's standard output, and the receipt's text."""
    began = time.monotonic()
    client = subprocess.Popen(
        [baton, "complete", "--server", server.address, "--ids", ",".join(map(str, ids)), "--max-tokens", str(tokens),
         "--ignore-eos", "--receipt"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    times = []
    while chunk := os.read(client.stdout.fileno(), 65536):
        times.append(time.monotonic() - began)
    receipt = client.stderr.read().decode()
    if client.wait() != 0:
        sys.exit(f"the client failed: {receipt}")
    server.drain_output()
    return times, receipt


def receipt_ms(receipt, row):
    match = re.search(row + r"\s+([0-9.]+) ms", receipt)
    return float(match[1]) if match else float("nan")


def spread(values):
    return f"{statistics.median(values):.1f} [{min(values):.1f}..{max(values):.1f}]"


def prompt(n):
    return [random.randrange(1000, 40000) for _ in range(n)]


def start_to_first_token(baton, model, args, rounds):
    values = []
    for _ in range(rounds):
        server = Server(baton, model, args, "0,1")
        ask(baton, server, prompt(16), 1)
        values.append((time.monotonic() - server.began) * 1000)
        server.stop()
    return values


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("baton")
    parser.add_argument("model")
    parser.add_argument("--llama-bench")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    random.seed(1)
    print(f"load average before: {os.getloadavg()[0]:.2f}")

    for name, args in (("unified", []), ("router + P + D", ["--prefill", "1", "--decode", "1"])):
        values = start_to_first_token(options.baton, options.model, args, options.rounds)
        print(f"start to first token, {name}: {spread(values)} ms")

    unified = Server(options.baton, options.model, ["--threads", "1"], "0")
    split = Server(options.baton, options.model, ["--prefill", "1", "--decode", "1"], "0,1")
    try:
        for length in (128, 512, 1500):
            rows = {"unified": ([], [], []), "1P1D": ([], [], [])}
            exposed = []
            for _ in range(options.rounds):
                ids = prompt(length)
                for name, server in (("unified", unified), ("1P1D", split)):
                    times, receipt = ask(options.baton, server, ids, 16)
                    ttft = receipt_ms(receipt, "first token")
                    gaps = [b - a for a, b in zip(times, times[1:])]
                    rows[name][0].append(ttft)
                    rows[name][1].append(gaps[0] * 1000 if gaps else float("nan"))
                    rows[name][2].append(statistics.median(gaps[1:]) * 1000 if len(gaps) > 1 else float("nan"))
                    if name == "1P1D":
                        exposed.append(float(re.search(r"exposed ([0-9.]+) ms", receipt)[1])
                                       if "exposed" in receipt else float("nan"))
            for name, (ttft, gap, step) in rows.items():
                print(f"prompt {length}, {name}: TTFT {spread(ttft)} ms, gap 1-2 {spread(gap)} ms, later gaps {spread(step)} ms")
            over = [b - a for a, b in zip(rows["unified"][0], rows["1P1D"][0])]
            print(f"prompt {length}: TTFT 1P1D - unified {spread(over)} ms; exposed transfer {spread(exposed)} ms")
    finally:
        unified.stop()
        split.stop()

    if options.llama_bench:
        for threads in (1, 2):
            out = subprocess.run([options.llama_bench, "-m", options.model, "-t", str(threads), "-p", "512", "-n", "128"],
                                 capture_output=True, text=True, check=True).stdout
            for row in re.findall(r"\|\s+((?:pp|tg)\d+) \|\s+([0-9.]+ ± [0-9.]+)", out):
                print(f"llama-bench, {threads} thread(s): {row[0]} {row[1]} tok/s")
    print(f"load average after: {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
