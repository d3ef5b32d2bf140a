"""A program that offers worlds, as somebody writes one from docs/protocol.md alone: nothing of the project is imported.

In each world a counter begins at the seed's last two digits, and two actors add 0, 1 or 2 to it; an episode is three steps, and
the reward is what was added. `fault` in the first argument makes it misbehave. With "sets", actors select sets of actors in an
order: left is the digit 1, right is 2.
"""

import json
import os
import signal
import struct
import sys
import time

SPACES = {
    "entities": [{"name": "Counter", "features": ["value"]}, {"name": "Actor", "features": []}],
    "actions": [{"name": "add", "type": "CategoricalActionSpace", "choices": ["0", "1", "2"]}],
}
FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
ACTEES, DIGITS = {}, {"left": "1", "right": "2"}
if FAULT == "sets":
    SPACES["actions"] = [{"name": "add", "type": "SelectEntitiesActionSpace", "ordered": True}]
    ACTEES = {"actee_types": ["Actor"]}


def main():
    if FAULT == "dies at once":
        sys.exit("no licence found")
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    worlds = {}
    while header := source.read(4):
        message = json.loads(source.read(struct.unpack(">I", header)[0]))
        if message["type"] == "close":
            break
        for answer in answers(message, worlds):
            body = json.dumps(answer).encode()
            sink.write(struct.pack(">I", len(body)) + body)
        sink.flush()
    if FAULT == "stays":
        time.sleep(60)


def answers(message, worlds):
    kind, env = message["type"], message.get("env")
    if kind == "hello":
        offer = {"type": "worlds", "protocol": 1, "name": "Counting", "spaces": SPACES, "parameters": ["start"]}
        offer |= {"can_save": FAULT == "can save"}
        yield offer | greeting_fault()
    elif kind == "reset":
        worlds[env] = {"value": message.get("info", {}).get("start", message["seed"] % 100), "steps": 0}
        if FAULT == "fails" and env == 1:
            yield {"type": "error", "env": env, "message": "IndexError: no room for a counter"}
        elif FAULT == "hangs" and env == 1:
            time.sleep(60)
        elif FAULT == "prints":
            sys.stdout.write("resetting...\n")
        elif FAULT == "is killed":
            print("about to use far too much memory", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        elif FAULT == "ends":
            sys.exit(3)
        elif FAULT == "another env":
            yield observation(7, worlds[env], 0)
        elif FAULT == "another answer":
            yield {"type": "saved", "env": env}
        elif FAULT == "cannot be":
            yield observation(env, worlds[env], 0) | {"features": {"Counter": [["many"]]}}
        elif FAULT == "too long":
            yield observation(env, worlds[env], 0) | {"end_of_episode_info": {"log": "x" * 5000}}
        else:
            yield observation(env, worlds[env], 0)
    elif kind == "act":
        added = sum(told(message["actions"]["add"]))
        worlds[env]["value"] += added
        worlds[env]["steps"] += 1
        answer = observation(env, worlds[env], added)
        if FAULT == "ends badly" and answer["done"] and env == 0:
            answer["features"]["Counter"] = [[1, 2]]
        yield answer
    elif kind == "save":
        yield {"type": "saved", "env": env, "state": worlds[env]}
    elif kind == "load":
        worlds[env] = message["state"]
        yield {"type": "loaded", "env": env}


def told(action):
    if FAULT != "sets":
        return action["choices"]
    assert action["actors"] == ["left", "right"]
    return [int("".join(DIGITS[actee] for actee in actees) or 0) for actees in action["actees"]]


def greeting_fault():
    if FAULT == "other version":
        return {"protocol": 2}
    if FAULT == "other parts":
        return {"parameter": ["start"]}
    if FAULT == "refuses":
        return {"type": "error", "message": "this is the server edition"}
    return {}


def observation(env, world, reward):
    done = world["steps"] == 3
    return {
        "type": "observation",
        "env": env,
        "features": {"Counter": [[world["value"]]], "Actor": [[], []]},
        "ids": {"Actor": ["left", "right"]},
        "actions": {} if done else {"add": {"actor_types": ["Actor"]} | ACTEES},
        "reward": reward,
        "done": done,
        "metrics": {"value": world["value"]},
    }


main()
