"""Behavioural cloning from recordings.

python -m enn_ppo.clone data=expert.rec env=MineSweeper run_dir=outputs/clone
"""
