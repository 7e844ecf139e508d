"""The NVIDIA GPUs of the node: read through NVML, numbered, checked, and watched for who uses them."""
