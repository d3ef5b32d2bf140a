"""Parameters that are set while episodes are running, and a worker process that dies."""

from entity_gym.pools.processes.env import ProcessVecEnv
from tests.entity_gym.pools.test_configure import PythonLaps, run, shown


def test_a_worker_that_takes_the_place_of_a_dead_one_knows_them() -> None:
    with ProcessVecEnv(PythonLaps, 2, 2, on_crash="restart") as env:
        env.reset(env_info={"weight": [2.0, 2.0]})
        env.configure({"laps": [3, 4]})
        env._workers[1].process.kill()
        assert shown(run(env)) == [[1, 2, 2], [0, 4, 2]]
