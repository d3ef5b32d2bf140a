"""Handwritten replays in the format of docs/replays.md: one of each kind, with numbers that a test can look up."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.replay.build import build_attention

LAYERS, HEADS = 2, 2


def replay(
    entities: dict[str, list[str]], actions: dict[str, Any], episodes: list[dict[str, Any]], **parts: Any
) -> Any:
    """A replay of a world with these types and actions."""
    made = {
        "format": "enn-ppo replay",
        "version": 1,
        "title": "A world, step 1000",
        "world": "World",
        "settings": {"width": 8},
        "entities": {name: {"features": features, "kinds": {}} for name, features in entities.items()},
        "global_features": [],
        "global_kinds": {},
        "actions": actions,
        "players": [""],
        "network": {"layers": LAYERS, "heads": HEADS},
        "episodes": episodes,
    }
    return {**made, **parts}


def episode(steps: list[dict[str, Any]], drawing: dict[str, Any] | None = None, number: int = 0) -> dict[str, Any]:
    """An episode of these steps; the last one ends it."""
    steps[-1]["done"] = True
    total = sum(step["reward"] for step in steps)
    return {
        "seed": 3,
        "number": number,
        "drawing": drawing,
        "reward": total,
        "length": len(steps) - 1,
        "info": {"found": 2, "way": "short"},
        "steps": steps,
    }


def step(views: list[dict[str, Any]], reward: float, rewards: list[float] | None = None) -> dict[str, Any]:
    """A step that does not end the episode."""
    return {"reward": reward, "rewards": rewards or [reward], "done": False, "truncated": False, "views": views}


def softmax(rng: np.random.Generator, *shape: int, sharpness: float = 1.5) -> NDArray[np.float64]:
    """Random numbers of which each row sums to 1."""
    numbers = np.exp(rng.normal(size=shape) * sharpness)
    return numbers / numbers.sum(-1, keepdims=True)


def attend(rng: np.random.Generator, num_entities: int) -> dict[str, Any]:
    """Attention weights of a frame."""
    return build_attention(softmax(rng, LAYERS, HEADS, num_entities, num_entities), num_entities)


def rounded(rows: NDArray[Any]) -> list[Any]:
    result: list[Any] = np.round(rows, 4).tolist()
    return result


def choose(rng: np.random.Generator, probs: NDArray[np.float64]) -> list[int]:
    return [int(rng.choice(len(row), p=row)) for row in probs]


def entropies(probs: NDArray[np.float64]) -> list[float]:
    return rounded(-(probs * np.log(np.maximum(probs, 1e-30))).sum(-1))


def decide(rng: np.random.Generator, probs: NDArray[np.float64], actors: list[int], **parts: Any) -> dict[str, Any]:
    """Decisions of actors with these probabilities."""
    decision = {"actors": actors, "probs": rounded(probs), "chosen": choose(rng, probs), "entropy": entropies(probs)}
    return {**decision, **parts}


def masked(probs: NDArray[np.float64], mask: NDArray[Any]) -> NDArray[np.float64]:
    allowed = probs * mask
    return allowed / allowed.sum(-1, keepdims=True)


MOVES = ["up", "down", "left", "right", "wait"]


def grid(num_episodes: int = 3, length: int = 12, seed: int = 0) -> Any:
    """Robots that move between mines on a grid, and a cannon in no place; all select a mine or a robot. A mine is hidden."""
    rng = np.random.default_rng(seed)
    actions = {
        "Move": {"kind": "categorical", "choices": MOVES},
        "Fire": {"kind": "select_entity", "nobody": True},
    }
    drawing = {
        "bounds": [0, 0, 7, 5],
        "grid": True,
        "y_up": True,
        "types": {
            "Mine": {"position": ["x", "y"], "shape": "circle", "color": "#303840", "size": 0.7},
            "Robot": {
                "position": ["x", "y"],
                "shape": "square",
                "color": "#266ec8",
                "size": 0.8,
                "label": "{x}",
                "trail": 4,
            },
            "Cannon": {"shape": "diamond", "color": "#c03030", "label": "ready in {cooldown}"},
        },
    }
    episodes = []
    for number in range(num_episodes):
        mines = np.array([[1, 1], [3, 4], [6, 2], [5, 5]])
        robots = np.array([[0, 0], [4, 3]])
        steps = []
        for t in range(length + 1):
            move = softmax(rng, 2, 5)
            mask = np.ones((2, 5))
            mask[:, 1] = robots[:, 1] > 0
            mask[:, 2] = robots[:, 0] > 0
            move = masked(move, mask)
            fire = softmax(rng, 3, 7)
            moved = decide(rng, move, [4, 5], mask=mask.astype(int).tolist())
            view = {
                "features": {"Mine": mines.tolist(), "Robot": robots.tolist(), "Cannon": [[t % 3]]},
                "ids": {"Robot": ["A", "B"]},
                "hidden": {"Mine": [0, 0, 0, 1]},
                "value": None if t == length else float(np.round(3 - t / 5 + rng.normal() / 4, 3)),
                "actions": {}
                if t == length
                else {"Move": moved, "Fire": decide(rng, fire, [4, 5, 6], actees=[0, 1, 2, 3, 4, 5])},
                "attention": attend(rng, 7),
            }
            steps.append(step([view], float(rng.random() < 0.3) - float(t == 9)))
            change = np.array([[0, 1], [0, -1], [-1, 0], [1, 0], [0, 0]])[moved["chosen"]]
            robots = np.clip(robots + change, 0, [7, 5])
        episodes.append(episode(steps, drawing, number))
    return replay({"Mine": ["x", "y"], "Robot": ["x", "y"], "Cannon": ["cooldown"]}, actions, episodes)


def plane(length: int = 60, seed: int = 1) -> Any:
    """Cars in the plane with headings, that give two numbers, of which one has bounds; nothing says how they are drawn."""
    rng = np.random.default_rng(seed)
    actions = {"Drive": {"kind": "continuous", "names": ["turn", "speed"], "low": [None, 0.0], "high": [None, 1.0]}}
    place, angle = rng.normal(size=(4, 2)) * 5, rng.uniform(0, 6, 4)
    goals = rng.normal(size=(3, 2)) * 6
    steps = []
    for t in range(length + 1):
        mean = np.stack([rng.normal(size=4) * 0.2, np.full(4, 0.8)], -1)
        std = np.full((4, 2), 0.3)
        chosen = mean + rng.normal(size=(4, 2)) * std
        chosen[:, 1] = chosen[:, 1].clip(0, 1)
        decision = {
            "actors": [3, 4, 5, 6],
            "mean": rounded(mean),
            "std": rounded(std),
            "chosen": rounded(chosen),
            "entropy": [0.43] * 4,
        }
        view = {
            "features": {"Goal": rounded(goals), "Car": rounded(np.concatenate([place, angle[:, None]], -1))},
            "value": float(np.sin(t / 9)),
            "actions": {"Drive": decision},
            "attention": attend(rng, 7),
        }
        steps.append(step([view], float(np.round(rng.normal() / 5, 3))))
        angle = angle + chosen[:, 0]
        place = place + 0.5 * chosen[:, 1:] * np.stack([np.cos(angle), np.sin(angle)], -1)
    made = replay({"Goal": ["x", "y"], "Car": ["x", "y", "heading"]}, actions, [episode(steps)])
    made["entities"]["Car"]["kinds"] = {"heading": {"kind": "angle"}}
    return made


def cards(length: int = 6, seed: int = 2) -> Any:
    """A player without features who selects cherries; global features, and an action of the frame. Nothing has a place."""
    rng = np.random.default_rng(seed)
    actions = {
        "Pick": {"kind": "select_entity", "nobody": False},
        "Pass": {"kind": "global_categorical", "choices": ["go on", "stop"]},
    }
    quality = rng.normal(size=9)
    steps = []
    for t in range(length + 1):
        left = len(quality) - t
        pick = softmax(rng, 1, left)
        stop = softmax(rng, 1, 2)
        decisions = {
            "Pick": decide(rng, pick, [left], actees=list(range(left))),
            "Pass": decide(rng, stop, [left + 1]),
        }
        del decisions["Pick"]["entropy"]
        view = {
            "features": {"Cherry": rounded(quality[:left, None]), "Player": [[]]},
            "globals": [t, 0.5],
            "value": 1.0,
            "actions": decisions,
            "attention": attend(rng, left + 2),
        }
        steps.append(step([view], float(t)))
    drawing = {"types": {"Cherry": {"shape": "circle", "color": "#c83232", "label": "{quality}"}}}
    made = replay({"Cherry": ["quality"], "Player": []}, actions, [episode(steps, drawing)])
    made["global_features"] = ["turn", "weather"]
    return made


def sets(length: int = 3) -> Any:
    """A crane and a painter among four boxes: the crane loads some in an order, and both paint some."""
    actions = {
        "Load": {"kind": "select_entities", "ordered": True, "min": 0, "max": 3},
        "Paint": {"kind": "select_entities", "ordered": False, "min": 1, "max": None},
    }
    steps = []
    for t in range(length + 1):
        load = {"actors": [4], "probs": [[0.6, 0.05, 0.7, 0.1, 0.85]], "chosen": [[2, 0]], "entropy": [1.5]}
        paint = {
            "actors": [4, 5],
            "probs": [[0.2, 0.9, 0.3, 0.25], [0.8, 0.0, 0.2, 0.98 if t == 1 else 0.5]],
            "mask": [[1, 1, 1, 1], [1, 0, 1, 1]],
            "chosen": [[1], [0]],
            "entropy": [1.2, 1.1],
        }
        view = {
            "features": {"Box": [[0, 0], [6, 0], [0, 6], [6, 6]], "Crane": [[3, 3]], "Painter": [[4, 2]]},
            "value": None,
            "actions": {
                name: {**decision, "actees": [0, 1, 2, 3]} for name, decision in (("Load", load), ("Paint", paint))
            },
            "attention": None,
        }
        steps.append(step([view], 0.0))
    return replay({"Box": ["x", "y"], "Crane": ["x", "y"], "Painter": ["x", "y"]}, actions, [episode(steps)])


def snakes(length: int = 20, seed: int = 3) -> Any:
    """Two players, of whom each moves its own snake, and sees the other one's head without its body."""
    rng = np.random.default_rng(seed)
    heads = np.array([[2, 2], [7, 7]])
    bodies = [[[2, 1], [2, 0]], [[7, 8], [7, 9]]]
    kind = {"position": ["x", "y"], "color": "#266ec8", "color_by": "snake"}
    drawing = {
        "bounds": [0, 0, 9, 9],
        "grid": True,
        "types": {
            "Head": {**kind, "shape": "square", "size": 0.95, "label": "{snake}", "layer": 2},
            "Body": {**kind, "shape": "square", "size": 0.7},
            "Food": {"position": ["x", "y"], "shape": "diamond", "color": "#d55e00", "size": 0.6},
        },
    }
    steps = []
    for _ in range(length + 1):
        views = []
        for own in range(2):
            move = softmax(rng, 1, 4)
            body = [[x, y, snake] for snake in range(2) if snake == own for x, y in bodies[snake]]
            views.append(
                {
                    "features": {
                        "Head": [[*heads[0].tolist(), 0], [*heads[1].tolist(), 1]],
                        "Body": body,
                        "Food": [[5, 5], [1, 8]],
                    },
                    "value": float(own) - 0.5,
                    "actions": {"Move": decide(rng, move, [own])},
                    "attention": attend(rng, 4 + len(body)),
                }
            )
        steps.append(step(views, 0.5, [1.0, -1.0]))
        bodies = [[heads[k].tolist(), bodies[k][0]] for k in range(2)]
        directions = np.array([[0, 1], [0, -1], [-1, 0], [1, 0]])
        heads = np.clip(heads + directions[[view["actions"]["Move"]["chosen"][0] for view in views]], 0, 9)
    made = replay(
        {"Head": ["x", "y", "snake"], "Body": ["x", "y", "snake"], "Food": ["x", "y"]},
        {"Move": {"kind": "categorical", "choices": MOVES[:4]}},
        [episode(steps, drawing)],
    )
    made["players"] = ["left", "right"]
    return made


def crowd(num_entities: int = 80) -> Any:
    """Birds in the plane that all act; the 16 largest attention weights of each."""
    rng = np.random.default_rng(4)
    move = softmax(rng, num_entities, 3)
    view = {
        "features": {"Bird": rounded(rng.uniform(0, 100, (num_entities, 2)))},
        "value": 1.0,
        "actions": {"Turn": decide(rng, move, list(range(num_entities)))},
        "attention": attend(rng, num_entities),
    }
    actions = {"Turn": {"kind": "categorical", "choices": ["left", "straight", "right"]}}
    return replay({"Bird": ["x", "y"]}, actions, [episode([step([view], 0.0), step([view], 1.0)])])


HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked = 1">',
    "' onclick='window.hacked = 1' <!--",
    "long " * 2000,
    "\u202eright to left\u202c \u05e9\u05dc\u05d5\u05dd",
    "__proto__",
    "constructor",
    "7",
    "3",
    "\ud800 \u2028 \x00 {{data}} &lt;b&gt;",
]


def hostile() -> Any:
    """A world whose every name is hostile: types, features, actions, choices, numbers, ids, players, infos and settings."""
    entities = {name: [*HOSTILE[:5], "x", "y"] if k % 2 else HOSTILE for k, name in enumerate(HOSTILE)}
    features = {name: [[float(k + j) for j in range(len(entities[name]))]] for k, name in enumerate(HOSTILE)}
    numbers = {"kind": "continuous", "names": HOSTILE[:2], "low": [None, -1.0], "high": [None, 1.0]}
    actions = {
        HOSTILE[0]: {"kind": "categorical", "choices": HOSTILE},
        HOSTILE[1]: {"kind": "select_entity", "nobody": True},
        HOSTILE[5]: numbers,
        HOSTILE[6]: {"kind": "global_categorical", "choices": HOSTILE[:2]},
    }
    share = [[0.1] * 10]
    decisions = {
        HOSTILE[0]: {"actors": [0], "probs": share, "chosen": [2], "entropy": [2.3]},
        HOSTILE[1]: {"actors": [0], "actees": list(range(9)), "probs": share, "chosen": [9], "entropy": [2.3]},
        HOSTILE[5]: {
            "actors": [0],
            "mean": [[0.0, 0.5]],
            "std": [[1.0, 1.0]],
            "chosen": [[0.3, 1.0]],
            "entropy": [2.0],
        },
        HOSTILE[6]: {"actors": [10], "probs": [[0.5, 0.5]], "chosen": [1], "entropy": [0.7]},
    }
    drawing = {
        "types": {HOSTILE[1]: {"position": ["x", "y"], "label": "</script>{x}", "color": "url(evil)", "shape": "<b>"}}
    }
    view = {
        "features": features,
        "ids": {name: [HOSTILE[4]] for name in HOSTILE[:3]},
        "globals": [1.0] * 10,
        "value": 1.0,
        "actions": decisions,
        "attention": attend(np.random.default_rng(0), 11),
    }
    made = replay(entities, actions, [episode([step([view, view], 1.0, [1.0, 2.0])] * 2, drawing)])
    made["episodes"][0]["info"] = {name: name for name in HOSTILE}
    texts = {"title": HOSTILE[0], "world": HOSTILE[1], "settings": {name: name for name in HOSTILE}}
    return {**made, **texts, "global_features": HOSTILE, "players": HOSTILE[2:4]}


KINDS = {"grid": grid, "plane": plane, "cards": cards, "sets": sets, "snakes": snakes, "hostile": hostile}
