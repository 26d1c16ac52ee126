"""The limit of ingest: bare CURVE PUSH/PULL of bytes that are made already, by pyzmq alone. Nothing is looked at."""

from __future__ import annotations

import multiprocessing as mp
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import zmq

_WARM_S = 0.2
#: So that a pusher hears that it is to rest.
_SEND_MS = 50


class Pair:
    """One puller and some pushers, one process each, which rest while nobody measures. See `pair`."""

    def __init__(self, puller: Connection, pushers: Sequence[Connection]) -> None:
        self._puller, self._pushers = puller, pushers

    def messages_per_s(self, seconds: float) -> float:
        """Messages that arrived in each second."""
        for pipe in self._pushers:
            pipe.send("go")
        self._puller.send(seconds)
        rate: float = self._puller.recv()
        for pipe in self._pushers:
            pipe.send("rest")
        for pipe in self._pushers:
            pipe.recv()
        self._puller.send(0.0)  # takes what is still under way
        self._puller.recv()
        return rate


@contextmanager
def pair(payloads: Sequence[bytes], pushers: int) -> Iterator[Pair]:
    """Processes that send these payloads in turn; they end with the context."""
    context = mp.get_context("spawn")
    public, secret = zmq.curve_keypair()
    pipes: list[Connection] = []
    processes: list[Any] = []

    def start(target: Any, *arguments: Any) -> Connection:
        ours, theirs = context.Pipe()
        process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
        return ours

    try:
        puller = start(_pull, public, secret)
        endpoint = puller.recv()
        pushing = [start(_push, endpoint, public, list(payloads)) for _ in range(pushers)]
        for pipe in pushing:
            pipe.recv()
        yield Pair(puller, pushing)
    finally:
        for pipe in pipes:
            pipe.close()  # which ends them
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


def _pull(pipe: Connection, public: bytes, secret: bytes) -> None:
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.curve_server, socket.curve_publickey, socket.curve_secretkey = True, public, secret
        socket.linger = 0
        socket.bind("tcp://127.0.0.1:*")
        pipe.send(socket.getsockopt_string(zmq.LAST_ENDPOINT))
        while (seconds := _next(pipe)) is not None:
            pipe.send(_count(socket, float(seconds)))


def _count(socket: zmq.Socket[bytes], seconds: float) -> float:
    """After a moment to warm up; 0 seconds: take what is there, and say nothing of it."""
    if not seconds:
        while socket.poll(50):
            socket.recv(copy=False)
        return 0.0
    _receive(socket, _WARM_S)
    return _receive(socket, seconds)


def _receive(socket: zmq.Socket[bytes], seconds: float) -> float:
    done, began = 0, time.perf_counter()
    while (took_s := time.perf_counter() - began) < seconds:
        if socket.poll(100):
            with suppress(zmq.Again):
                for _ in range(100):
                    socket.recv(zmq.NOBLOCK, copy=False)
                    done += 1
    return done / took_s


def _push(pipe: Connection, endpoint: str, server: bytes, payloads: list[bytes]) -> None:
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        socket.curve_serverkey = server
        socket.linger, socket.sndtimeo = 0, _SEND_MS
        socket.connect(endpoint)
        pipe.send("ready")
        at = 0
        while _next(pipe) is not None:  # go
            while not pipe.poll():
                with suppress(zmq.Again):
                    for _ in range(100):
                        socket.send(payloads[at % len(payloads)], copy=False)
                        at += 1
            if _next(pipe) is None:  # rest
                return
            pipe.send("rests")


def _next(pipe: Connection) -> Any:
    """What is said next; None once the parent closed the pipe, or is gone."""
    try:
        return pipe.recv()
    except EOFError:
        return None


def latencies_ms(payload: bytes, count: int) -> list[float]:
    """Milliseconds from sending to having received, one message at a time, between two sockets of one process."""
    public, secret = zmq.curve_keypair()
    with zmq.Context() as context, context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as push:
        pull.curve_server, pull.curve_publickey, pull.curve_secretkey = True, public, secret
        push.curve_publickey, push.curve_secretkey = zmq.curve_keypair()
        push.curve_serverkey = public
        pull.linger = push.linger = 0
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        push.connect(f"tcp://127.0.0.1:{port}")
        found = []
        for _ in range(count + 1):  # the first one waits for the handshake
            began = time.perf_counter()
            push.send(payload, copy=False)
            pull.recv(copy=False)
            found.append((time.perf_counter() - began) * 1000)
        return found[1:]
