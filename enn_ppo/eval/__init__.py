"""Evaluation of checkpoints on whole episodes, during training and as a command.

python -m enn_ppo.eval checkpoint=outputs/mines episodes=1000 output=result.json
"""
