"""Reverb, asked by JSON lines. It runs in an environment of its own and imports nothing of ours: see peers.py.

    {"do": "ingest", "what": NAME, "producers": N, "seconds": S}  ->  {"rate": sessions/s}
    {"do": "sample", "what": NAME, "batch": B, "seconds": S}      ->  {"rate": sessions/s}

One item is one session, given by `Client.insert`, into a table of a few thousand with a uniform sampler, FIFO. The
server and the producers are processes of their own, and rest while nobody measures. The one argument is a folder with
NAME.npz, the sessions: arrays `[sessions, T, ...]`.
"""

import json
import multiprocessing as mp
import os
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np

TABLES = {"cartpole": 5000, "atari": 2000}


def load(folder, what):
    with np.load(os.path.join(folder, f"{what}.npz"), allow_pickle=False) as file:  # noqa: PTH118
        columns = [file[name] for name in sorted(file.files)]
    return [[column[at] for column in columns] for at in range(len(columns[0]))]


def serve(pipe):
    import reverb

    tables = [
        reverb.Table(
            name, reverb.selectors.Uniform(), reverb.selectors.Fifo(), size, reverb.rate_limiters.MinSize(1)
        )
        for name, size in TABLES.items()
    ]
    server = reverb.Server(tables, port=None)
    pipe.send(server.port)
    until_closed(pipe)
    server.stop()


def produce(pipe, port, folder):
    import reverb

    client = reverb.Client(f"localhost:{port}")
    client.server_info(timeout=30)
    pipe.send("ready")
    sessions = {}
    for what, seconds in iter(lambda: until_closed(pipe), None):
        if what not in sessions:
            sessions[what] = load(folder, what)
        some, done, began = sessions[what], 0, time.perf_counter()
        while (took := time.perf_counter() - began) < seconds:
            client.insert(some[done % len(some)], {what: 1.0})
            done += 1
        pipe.send(done / took)


def until_closed(pipe):
    try:
        return pipe.recv()
    except EOFError:
        return None


class Driver:
    def __init__(self, folder):
        import reverb

        self.context, self.folder = mp.get_context("spawn"), folder
        self.producers, self.filled = [], set()
        pipe = self.start(serve)
        self.port = pipe.recv()
        self.server = pipe
        self.client = reverb.Client(f"localhost:{self.port}")
        self.client.server_info(timeout=30)

    def start(self, target, *arguments):
        ours, theirs = self.context.Pipe()
        self.context.Process(target=target, args=(theirs, *arguments), daemon=True).start()
        theirs.close()
        return ours

    def ingest(self, what, producers, seconds):
        while len(self.producers) < producers:
            pipe = self.start(produce, self.port, self.folder)
            pipe.recv()
            pipe.send((what, 0.0))  # reads its sessions
            pipe.recv()
            self.producers.append(pipe)
        for pipe in self.producers[:producers]:
            pipe.send((what, seconds))
        return sum(pipe.recv() for pipe in self.producers[:producers])

    def sample(self, what, batch, seconds):
        if what not in self.filled:
            self.filled.add(what)
            sessions = load(self.folder, what)
            for at in range(TABLES[what]):
                self.client.insert(sessions[at % len(sessions)], {what: 1.0})
        done, began = 0, time.perf_counter()
        while (took := time.perf_counter() - began) < seconds:
            came = [
                (one[0] if isinstance(one, (list, tuple)) else one).data
                for one in self.client.sample(what, batch)
            ]
            stacked = [np.stack(column) for column in zip(*came)]  # noqa: B905 - it may be an old Python
            done += len(stacked[0])
        return done / took


def main():
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    driver = Driver(sys.argv[1])
    for line in sys.stdin:
        asked = json.loads(line)
        do = getattr(driver, asked.pop("do"))
        os.write(out, (json.dumps({"rate": do(**asked)}) + "\n").encode())


if __name__ == "__main__":
    main()
