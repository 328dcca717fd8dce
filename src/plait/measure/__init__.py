"""What a model costs on a device: measured latency and memory, a profile of the device, predictions from it.

Measuring needs torch; a profile is read, compared and predicted from without it.
"""
