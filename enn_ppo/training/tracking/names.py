"""The names of all metrics, with units and meanings: the site's page of metrics is made of them."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """A metric, or several that are explained together."""

    names: tuple[str, ...]  # `<name>` stands for a name of the environment
    unit: str
    meaning: str
    null: str = "never"  # when it is null; "absent" is: not in the row


class Group(NamedTuple):
    title: str
    about: str
    metrics: tuple[Metric, ...]


def _one(name: str, unit: str, meaning: str, null: str = "never") -> Metric:
    return Metric((name,), unit, meaning, null)


def _spread(name: str, unit: str, meaning: str, null: str = "never") -> Metric:
    return Metric((name, f"{name}_min", f"{name}_max"), unit, meaning, null)


_PROGRESS = (
    _one("step", "frames", "trained so far"),
    _one("seconds", "s", "trained so far, without interruptions"),
    _one("frames", "frames", "of the update"),
    _one("steps_per_second", "1/s", "`frames` over the update's seconds"),
    _one("entities_per_second", "1/s", "entities, with `__global__`, over the update's seconds"),
    Metric(
        ("share_env", "share_act", "share_update"),
        "0 to 1",
        "shares of the update's seconds for environments, acting, and the rest; they add up to 1. With `rollout.pipeline=2` "
        "the first is the policy's waiting. With `distributed=ray` the first two are a runner's, and with "
        "`distributed.sync=false` the sum may exceed 1",
    ),
)
_EPISODES = (
    _one("episodes", "episodes", "that ended"),
    _one("episodes_truncated", "episodes", "that a limit cut"),
    _spread("episodic_reward", "reward", "sum over an ended episode", "no episode ended"),
    _spread("episode_length", "steps", "of an ended episode", "no episode ended"),
    _spread(
        "episode/<name>", "its own", "a number of `end_of_episode_info`", "never; absent if no ended episode had it"
    ),
    _one("episode/<name>_count", "episodes", "that had the number", "never; absent if none had it"),
    _spread(
        "env/<name>",
        "its own",
        "a metric that the environment reports with its steps; a reported `x_max` replaces the maximum of `x`",
        "none was reported, if present",
    ),
    _one("env/<name>_count", "values", "that were reported", "never; absent if none"),
    _spread("reward", "reward", "of a step"),
    _spread("elapsed_steps", "steps", "of the episode before a frame"),
    _spread("entities", "entities", "in a frame, with `__global__`"),
    _spread("entities/<type>", "entities", "of a type, or `__global__`, in a frame"),
    _one("actors/<action>", "decisions", "for the action"),
    _one(
        "actions/<action>/<choice>",
        "0 to 1",
        "share of a choice, of a selected type, or of `__nobody__`",
        "nobody took the action",
    ),
    _spread(
        "actions/<action>/<number>",
        "its own",
        "a number of a continuous action, by its name or index",
        "nobody took the action",
    ),
    _spread(
        "env_info/<parameter>",
        "its own",
        "a parameter of the episodes that began, from `env.info` and callbacks",
        "never; absent if none was given",
    ),
    _one(
        "env_info/<parameter>/<value>",
        "0 to 1",
        "share of environments in which a parameter that is no number has this value",
        "never; absent if none has it",
    ),
)
_LEARNING = (
    _one("policy_loss", "-", "PPO's clipped objective, negated"),
    _one("value_loss", "reward² over the value head's variance", "half the squared error of values"),
    _one("entropy", "nats", "of an actor's distribution"),
    _one("approx_kl", "nats", "estimated KL divergence from the policy that collected the rollout"),
    _one("clip_fraction", "0 to 1", "share of probability ratios that were clipped"),
    _one(
        "explained_variance",
        "up to 1",
        "share of the returns' variance that values explain; 0: as good as their mean",
        "returns were equal",
    ),
    _one("grad_norm", "-", "2-norm of the gradient before clipping"),
    _one(
        "value_grad_norm",
        "-",
        "2-norm of the gradient of a separate value network",
        "never; absent without a value network",
    ),
    _one(
        "teacher_kl", "nats", "KL(teacher || policy) of an actor's distribution", "never; absent without `ppo.teacher`"
    ),
    _one(
        "target_loss",
        "target²",
        "half the squared error, summed over targets",
        "never; absent without `ppo.target_coef`",
    ),
    _one("epochs", "epochs", "passes over the rollout; fewer where `ppo.target_kl` stopped the update"),
    _one("learning_rate", "-", "of the policy"),
    _one("entropy_coefficient", "-", "weight of the entropy bonus"),
)
_EVALUATIONS = (
    _one("eval/step", "frames", "training of the evaluated policy"),
    _one("eval/seconds", "s", "that the evaluation took"),
    Metric(
        ("eval/episodic_reward", "eval/episode_length", "eval/<name>"),
        "as above",
        "means; `<name>` is one of `end_of_episode_info`",
    ),
    Metric(
        ("eval/win_rate", "eval/opponent_reward"),
        "0 to 1, reward",
        "share of games won against `eval.opponent`, where a draw is half a win; mean reward of the other players",
        "never; absent without an opponent",
    ),
    Metric(
        ("eval/episodic_reward_ci95", "eval/<name>_ci95"),
        "as above",
        "half-width of the mean's 95 % confidence interval",
        "never; absent for one episode",
    ),
)
_SELF_PLAY = (
    Metric(("self_play/rating", "self_play/rating_sigma"), "points", "OpenSkill rating, and its standard deviation"),
    _one(
        "self_play/win_rate",
        "0 to 1",
        "share of games won against snapshots, where a draw is half a win",
        "no such game ended",
    ),
    _one("self_play/pool_size", "snapshots", "in the pool"),
)
_RAY = (
    _one("distributed/runners", "runners", "that delivered a rollout"),
    Metric(
        ("distributed/staleness", "distributed/staleness_max"),
        "updates",
        "age of the parameters that collected a rollout",
    ),
    _one("distributed/rollout_bytes", "bytes", "mean size of a rollout"),
    _one("distributed/play_seconds", "s", "mean time to collect a rollout"),
    _one("distributed/handover_seconds", "s", "mean time in which the learner fetched a rollout"),
    _one("distributed/rollouts_lost", "rollouts", "lost with a runner"),
    _one("distributed/rollouts_stale", "rollouts", "dropped since their parameters were too old"),
    _one("distributed/runner_restarts", "runners", "that were restarted"),
)

GROUPS = (
    Group("Progress and speed", "Rows of evaluations alone have only `step` of these.", _PROGRESS),
    Group("Episodes and steps", "Of all environments, in the update's rollout.", _EPISODES),
    Group(
        "Learning",
        "Means over minibatches, except `explained_variance` (of the rollout) and the last three.",
        _LEARNING,
    ),
    Group(
        "Evaluations",
        "Absent unless an evaluation ended: in a later update's row, or in one of its own. TensorBoard and plots draw it at "
        "`eval/step`.",
        _EVALUATIONS,
    ),
    Group("Self-play", "Absent unless `self_play.enabled`.", _SELF_PLAY),
    Group(
        "Ray",
        "Absent unless `distributed=ray`.",
        _RAY,
    ),
)
