"""Hyperparameter search with Optuna.

python -m enn_ppo.sweep sweep=ppo env=Xor sweep.trials=30 run_dir=outputs/sweep    # the same command again goes on
"""
