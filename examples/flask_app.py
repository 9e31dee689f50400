"""A Flask application whose tasks have its context and a lock.

From the top of the repository, with a Redis at REDIS_URL (default: redis://localhost:6379/0):

    celery -A examples.flask_app worker -c 2
    flask --app examples.flask_app run
    curl -X POST localhost:5000/accounts/5/sync
"""

import os
import time

from celery import Celery, shared_task
from flask import Flask, current_app, jsonify

from celery_redislock import LockConflict, SingletonTask

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")


def celery_init_app(app):
    class FlaskTask(SingletonTask):
        def __call__(self, *args, **kwargs):
            with app.app_context():
                return super().__call__(*args, **kwargs)

    celery_app = Celery(app.name, task_cls=FlaskTask)
    celery_app.config_from_object(app.config["CELERY"])
    celery_app.set_default()
    app.extensions["celery"] = celery_app
    return celery_app


flask_app = Flask(__name__)
flask_app.config.from_mapping(
    CELERY={"broker_url": REDIS_URL, "result_backend": REDIS_URL, "redislock_url": REDIS_URL},
    GREETING="synced",
)
celery_app = celery_init_app(flask_app)


@shared_task(lock_scope="queued+running", on_queued_conflict="raise")
def sync(account_id):
    """Refused at send, while another one waits or runs."""
    time.sleep(1)  # the work
    return f"{current_app.config['GREETING']} {account_id}"


@flask_app.post("/accounts/<int:account_id>/sync")
def start_sync(account_id):
    return {"task_id": sync.delay(account_id).id}, 202


@flask_app.errorhandler(LockConflict)
def conflict(error):
    holder = error.holder
    return jsonify(task_id=holder and holder.task_id), 409
