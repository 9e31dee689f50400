"""`celery redislock web`: the page that shows the locks, live, and what it is served by."""
