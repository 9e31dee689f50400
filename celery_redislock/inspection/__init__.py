"""What is so in the lock server, as values. Reads, and changes nothing.

`locks.snapshot` and `locks.lock` have the locks, `rooms.waiting` the tasks that wait for them,
`history.history` past runs, `figures.figures` sums by task, `listener.Listener` Celery's events.
Commands, page, `doctor`, metrics and admin look here, and nowhere else.
"""
