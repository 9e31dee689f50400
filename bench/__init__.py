"""The benchmarks: celery-redislock beside its peers, in one run. `make bench`."""
