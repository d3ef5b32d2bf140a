"""The sections of `gpu_checks.py`: each module measures one thing, and has a function `measure(section)`."""
