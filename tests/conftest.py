"""What holds for every test."""

from hypothesis import HealthCheck, settings

# How long an example takes says something of the machine, not of the code: speed is for benchmarks.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
