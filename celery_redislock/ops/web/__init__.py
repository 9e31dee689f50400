"""`celery redislock web`: the page that shows the locks live, and its server."""
