"""Trains PPO of rejax: `bench.py train --rejax PYTHON` runs this with an interpreter with rejax 0.1.3 and gymnax 0.0.9.

    PYTHON rejax_peer.py ENV NUM_ENVS STEPS EPOCHS BATCH_SIZE UPDATES THREADS

Policy and value function are two MLPs with two hidden layers of 64. Prints a line of JSON: the median steps per second of an
update, without the first two and without compilation.
"""

import json
import os
import statistics
import sys
import time

if __name__ == "__main__" and hasattr(os, "sched_setaffinity"):  # before JAX starts as many threads as there are cores
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[7])])

import jax
from rejax import get_algo


def main() -> None:
    num_envs, steps, epochs, batch_size, updates = map(int, sys.argv[2:7])
    config = {
        "env": sys.argv[1],
        "num_envs": num_envs,
        "num_steps": steps,
        "num_epochs": epochs,
        "num_minibatches": num_envs * steps // batch_size,
        "learning_rate": 1e-6,
        "agent_kwargs": {"hidden_layer_sizes": (64, 64)},
    }
    ppo = get_algo("ppo").create(**config)
    state = ppo.init_state(jax.random.PRNGKey(0))
    update = jax.jit(ppo.train_iteration).lower(state).compile()
    seconds = []
    for _ in range(updates):
        started = time.perf_counter()
        state = jax.block_until_ready(update(state))
        seconds.append(time.perf_counter() - started)
    print(json.dumps({"steps_per_second": num_envs * steps / statistics.median(seconds[2:])}))


if __name__ == "__main__":
    main()
