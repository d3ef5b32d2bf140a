"""Trained policies for other programs: in Python (`agent.py`), and over sockets.

python -m enn_ppo.serve checkpoint=outputs/orchard port=5577
"""
