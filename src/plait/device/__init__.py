"""What a model costs on a device: measured latency and memory, a profile of the device, predictions from it."""
