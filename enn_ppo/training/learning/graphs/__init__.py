"""Acting and learning as CUDA graphs: recorded once, replayed with other numbers (`compile=graphs`)."""
