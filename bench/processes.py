"""Starts servers, pins them to CPUs, measures them with /proc, and always stops them."""

import contextlib
import glob
import itertools
import os
import pathlib
import re
import signal
import socket
import subprocess
import time

START_SECONDS = 60


class Invalid(Exception):
    """A program didn't do its work, so its figures would mean nothing."""


class Processes:
    """Starts programs, each in its own session, and ends those still running at the end of the block."""

    def __init__(self, scratch, end_seconds=5):
        self.scratch = scratch
        self.end_seconds = end_seconds
        self.running = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for process in reversed(self.running[:]):
            self.stop(process)

    @contextlib.contextmanager
    def server(self, command, cpu, port):
        """Runs a server on one CPU for the block, which begins when the port accepts connections."""
        with open(self.scratch / f"{port}.log", "w+") as log:
            process = self.start(["taskset", "-c", str(cpu), *command], stdout=log, stderr=log)
            try:
                await_port(process, port, log)
                yield process
            finally:
                self.stop(process)

    def output(self, command, seconds):
        """Runs a command and returns its output. Raises Invalid if it fails or takes too long."""
        return self.outputs([command], seconds)[0]

    def outputs(self, commands, seconds):
        """Runs commands in parallel, each as `output` does."""
        end = time.monotonic() + seconds
        processes = [self.start(command, stdout=subprocess.PIPE, text=True) for command in commands]
        try:
            printed = [process.communicate(timeout=max(end - time.monotonic(), 0))[0] for process in processes]
        except subprocess.TimeoutExpired as timeout:
            raise Invalid(str(timeout)) from timeout
        finally:
            for process in processes:
                self.stop(process)
        for process, text in zip(processes, printed):
            if process.returncode != 0:
                raise Invalid(f"`{process.args[0]}` failed: {text.strip()}")
        return printed

    def start(self, command, **streams):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **streams)
        self.running.append(process)
        return process

    def stop(self, process):
        """Ends the process group: with SIGTERM, and if it takes too long, with SIGKILL."""
        signal_group(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self.end_seconds)
        signal_group(process, signal.SIGKILL)
        process.wait()
        self.running.remove(process)


def signal_group(process, number):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def await_port(process, port, log):
    """Waits until the port accepts connections. Raises Invalid, with the end of the log, if the process fails."""
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.3):
            return
        time.sleep(0.02)
    log.seek(0)
    raise Invalid(f"{' '.join(map(str, process.args))} doesn't listen: {log.read()[-2000:].strip()}")


def session_texts(process, name):
    """Returns the text of a /proc file, for the process and all its descendants."""
    for stat in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # After the program's name in brackets: state, parent, group, session.
            session = int(pathlib.Path(stat).read_text().rpartition(")")[2].split()[3])
            if session == process.pid:
                for file in pathlib.Path(stat).parent.glob(name):
                    yield file.read_text()


def cpu_us(process):
    """Returns the CPU time used so far. schedstat counts nanoseconds; stat has ticks of 10 ms."""
    return sum(int(text.split()[0]) for text in session_texts(process, "task/*/schedstat")) / 1000


def memory_mib(process, figure):
    """Returns the resident memory of all processes together: now (`VmRSS`) or at its peak (`VmHWM`)."""
    sizes = (re.search(rf"{figure}:\s+(\d+) kB", text) for text in session_texts(process, "status"))
    return sum(int(size[1]) for size in sizes if size) / 1024


def free_ports(count):
    """Returns ports below the kernel's range for clients, so that none is taken while a server restarts."""
    return list(itertools.islice(filter(is_free, range(20000, 32768)), count))


def is_free(port):
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
        return True
    return False
