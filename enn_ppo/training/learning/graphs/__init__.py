"""Acting and learning as CUDA graphs, which are recorded once and replayed on new inputs (`compile=graphs`)."""
