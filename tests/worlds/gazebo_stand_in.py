"""A stand-in for gzserver that needs no Gazebo: one sliding mass of 1 kg, by the plugin's protocol.

A script of the standard library alone, so that it starts fast. Environment variables make it fail:
STAND_IN_SAYS (what it prints before it ends, or with STAND_IN_STAYS hangs), STAND_IN_SLOW (seconds
per step).
"""

import json
import os
import signal
import socket
import struct
import sys
import time

LIMIT, DIE, HANG = 100.0, 50.0, 60.0
"""The joint's limit; efforts at which it kills itself, or stops answering."""
DT = 0.001


def start() -> None:
    """Fail, if it is to."""
    if "STAND_IN_SAYS" not in os.environ:
        return
    print(os.environ["STAND_IN_SAYS"], flush=True)
    if "STAND_IN_STAYS" in os.environ:
        time.sleep(60)
    sys.exit(3)


def serve() -> None:
    """Answer requests until the other end is closed."""
    connection = socket.socket(fileno=int(os.environ["GZ_LOCKSTEP_FD"]))
    names = {"joints": ["toy::slider"], "efforts": [LIMIT], "links": [], "models": ["toy"]}
    hello = json.dumps({"protocol": 2, "dt": DT, "engine": "ode", **names}).encode()
    place = velocity = 0.0
    iterations = 0
    while len(head := connection.recv(4, socket.MSG_WAITALL)) == 4:
        request = connection.recv(struct.unpack("<I", head)[0], socket.MSG_WAITALL)
        if request[:1] == b"R":
            place, velocity = struct.unpack_from("<dd", request, 9)
            iterations = 0
        elif request[:1] == b"S":
            count, effort = struct.unpack_from("<Id", request, 1)
            if effort == DIE:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60 if effort == HANG else float(os.environ.get("STAND_IN_SLOW", "0")))
            for _ in range(count):
                velocity += effort * DT
                place += velocity * DT
            iterations += count
        state = struct.pack("<Qddd", iterations, iterations * DT, place, velocity)
        reply = hello if request[:1] == b"H" else state
        connection.sendall(struct.pack("<IB", len(reply) + 1, 0) + reply)


if __name__ == "__main__":
    start()
    serve()
