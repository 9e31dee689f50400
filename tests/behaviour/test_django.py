"""`celery_redislock.django`: checks, the admin, and the page of locks behind Django's login."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import httpx
import pytest

from celery_redislock import RedisLock
from tests.support.django_project import PROJECT, set_up
from tests.support.programs import python
from tests.support.servers import RedisServer, free_port
from tests.support.waiting import eventually
from tests.support.workers import ROOT

DB = 7


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer, tmp_path: Path) -> None:
    set_up(monkeypatch, f"{redis_server.url}/{DB}", tmp_path)


# -- the checks -------------------------------------------------------------------------------

SETTINGS = """
    SECRET_KEY = "a test's"
    INSTALLED_APPS = ["celery_redislock.django", "proj"]
    CELERY_BROKER_URL = CELERY_RESULT_BACKEND = "redis://127.0.0.1:{port}/0"
    CELERY_TASK_TIME_LIMIT = 60
"""
APP = """
    from celery import Celery
    app = Celery("proj")
    app.config_from_object("django.conf:settings", namespace="CELERY")
    app.autodiscover_tasks()
"""
TASKS = """
    from celery import shared_task
    from celery_redislock.django import LockedTask

    @shared_task(base=LockedTask, lock_key=["account_id"])
    def sync(account_id): ...
"""


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `manage.py check` in a project with these tasks and settings, where no Redis answers."""
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "proj.settings")
    port = free_port()

    def check(
        tasks: str = "", settings: str = "", app: str = APP, more: tuple[str, ...] = ()
    ) -> tuple[int, list[str], str]:
        """The exit status, the ids of the findings, and all the text."""
        project = tmp_path / "proj"
        project.mkdir(exist_ok=True)
        files = {
            "__init__.py": "from .celery import app" if app else "",
            "settings.py": dedent(SETTINGS.format(port=port)) + dedent(settings),
            "celery.py": dedent(app),
            "tasks.py": dedent(TASKS) + dedent(tasks),
        }
        for name, text in files.items():
            (project / name).write_text(text)
        done = python("-m", "django", "check", *more)
        return done.returncode, re.findall(r"\((redislock\.\w+)\)", done.stderr), done.stderr

    return check


def test_the_check_of_a_sound_project_finds_nothing_and_asks_no_server(check):
    assert check() == (0, [], "")
    assert python(f"{PROJECT}/manage.py", "check").returncode == 0


def test_what_a_test_overrides_acts_meanwhile(check):
    check()
    code = """
    import django
    django.setup()
    from django.test import override_settings
    from proj import app
    from proj.tasks import sync

    app.finalize()
    def told():
        return sync.lock_options.lock_ttl, sync.lock_key_for(1).partition(":")[0]
    print(*told())
    with override_settings(CELERY_REDISLOCK_TTL=5, CELERY_REDISLOCK_PREFIX="other"):
        print(*told())
    print(*told())
    """
    assert python("-c", dedent(code)).stdout.split() == [
        "30.0",
        "redislock",
        "5.0",
        "other",
        "30.0",
        "redislock",
    ]


def test_the_check_names_every_task_with_wrong_options(check):
    status, ids, said = check(
        """
        @shared_task(base=LockedTask, lock_kee=["a"])
        def one(a): ...

        @shared_task(base=LockedTask, on_conflict="defre")
        def two(a): ...

        from proj import app

        @app.task(base=LockedTask, lock_key=["b"])
        def three(a): ...
        """
    )
    assert status == 1
    assert ids == ["redislock.E001"] * 3, said
    for name, what in (("one", "lock_kee"), ("two", "defre"), ("three", "'b'")):
        assert re.search(rf"E001\) task proj\.tasks\.{name}: .*{what}", said), said
    assert "HINT" in said


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (
            "CELERY_REDISLOCK_TLL = 5",
            "unknown setting 'redislock_tll'; did you mean redislock_ttl?",
        ),
        ("CELERY_REDISLOK_TTL = 5", "'redislok_ttl'; did you mean redislock_ttl?"),
        ("CELERY_REDISLOCK_TTL = 'long'", "redislock_ttl='long'"),
        ("CELERY_REDISLOCK_TASKS = {'proj.tasks.sync': {'lock_kye': 5}}", "lock_kye"),
        ("CELERY_BROKER_URL = CELERY_RESULT_BACKEND = 'memory://'", "redislock_url is not set"),
    ],
)
def test_the_check_names_a_wrong_setting_once(check, settings, what):
    status, ids, said = check(
        """
        @shared_task(base=LockedTask)
        def another(): ...
        """,
        settings,
    )
    assert status == 1
    assert ids == ["redislock.E001"], said
    assert what in said


def test_the_check_warns_of_what_doctor_finds_without_a_server(check):
    tasks = """
    @shared_task(lock_key=["a"])
    def forgotten(a): ...

    @shared_task(base=LockedTask, lock_key="both", lock_limit=2)
    def two(): ...

    @shared_task(base=LockedTask, lock_key="both", lock_limit=3, lock_max_hold=90)
    def three(): ...
    """
    settings = """
    CELERY_TASK_TIME_LIMIT = None
    CELERY_REDISLOCK_TASKS = {"nothing.*": {}}
    CELERY_BEAT_SCHEDULE = {"often": {"task": "proj.tasks.sync", "schedule": 5, "args": (1,)}}
    """
    status, ids, said = check(tasks, settings)
    assert status == 1, "tasks that share a lock disagree on its limit"
    numbers = ["E007", "W002", "W003", "W004", "W005"]
    assert sorted(ids) == [f"redislock.{number}" for number in numbers], said
    assert said.count("proj.tasks.forgotten") == 1, "the log does not say it too"
    assert "lock_max_hold=90 and no time limit" in said
    silenced = f"SILENCED_SYSTEM_CHECKS = {[f'redislock.{number}' for number in numbers]}"
    assert check(tasks, f"{dedent(settings)}\n{silenced}")[:2] == (0, [])


def test_that_a_body_may_hang_is_said_before_the_deployment(check):
    """And not to a newcomer at each command."""
    settings = "CELERY_TASK_TIME_LIMIT = None"
    tasks = """
    @shared_task(base=LockedTask)
    def another(): ...
    """
    assert check(tasks, settings) == (0, [], "")
    _, ids, said = check(tasks, settings, more=("--deploy",))
    assert ids == ["redislock.W005"]
    assert "holds its lock for ever: proj.tasks.another, proj.tasks.sync" in said
    assert check(tasks, more=("--deploy",))[1] == [], "there is a limit"
    wrong = check(tasks, "CELERY_REDISLOCK_TTL = 'long'", more=("--deploy",))
    assert wrong[1] == ["redislock.E001"], "and it is said once"


@pytest.mark.parametrize(
    ("settings", "number", "what"),
    [
        ("CELERY_REDISLOCK_TASKS = ['proj.tasks.sync']", "E001", "must be a dict of task names"),
        ("CELERY_REDISLOCK_TASKS = {5: {}}", "E001", r"redislock_tasks\[5\]"),
        ("CELERY_BEAT_SCHEDULE = [{'task': 'proj.tasks.sync'}]", "E004", "beat_schedule is a list"),
        (
            "CELERY_BEAT_SCHEDULE = {5: {'task': 'proj.tasks.sync'}, 'x': {'task': ['a']}}",
            *("W004", "5 .proj.tasks.sync."),
        ),
        (
            "CELERY_BEAT_SCHEDULE = {'x': {'task': 'proj.tasks.sync', 'options': [5]}}",
            *("W004", "cannot tell: AttributeError"),
        ),
        ("CELERY_BROKER_TRANSPORT_OPTIONS = ['x']", "E001", "broker_transport_options must be"),
        ("CELERY_RESULT_BACKEND_TRANSPORT_OPTIONS = 'x'", "E001", "not a str"),
        ("CELERY_TASK_TIME_LIMIT = '60'", "W006", "cannot tell: TypeError"),
    ],
)
def test_a_setting_of_the_wrong_type_is_a_finding(check, settings, number, what):
    _, ids, said = check("LockedTask.acks_late = True", settings)
    assert ids == [f"redislock.{number}"], said
    assert "Traceback" not in said
    assert re.search(what, said), said


DJANGOS = "django.core.cache.backends.redis.RedisCache"
OTHERS = "django_redis.cache.RedisCache"  # nobody imports it: no cache is used


@pytest.mark.parametrize(
    ("backend", "more", "url", "shared"),
    [
        (DJANGOS, "'LOCATION': 'redis://localhost'", "redis://127.0.0.1:6379/0", True),
        (DJANGOS, "'LOCATION': 'redis://a;redis://b:7/2'", "rediss://u:p@b:7/2", True),
        (DJANGOS, "'LOCATION': 'redis://h', 'OPTIONS': {'db': '3'}", "redis://h/3", True),
        (DJANGOS, "'LOCATION': 'redis://h', 'OPTIONS': {'db': 3}", "redis://h/0", False),
        (
            *(OTHERS, "'LOCATION': 'redis://h', 'OPTIONS': {'CONNECTION_POOL_KWARGS': {'db': 3}}"),
            *("redis://h/3", True),
        ),
        (
            OTHERS,
            "'LOCATION': 'unix:///r.sock?db=1'",
            "redis+socket:///r.sock?virtual_host=1",
            True,
        ),
        (OTHERS, "'LOCATION': 'redis://n:7000'", "redis+cluster://m:7000,n:7000", True),
        (OTHERS, "'LOCATION': 'redis://c/1'", "redlock://a,b,c/1", True),
        (OTHERS, "'LOCATION': 5, 'OPTIONS': []", "redis://c/1", False),
        ("django.core.cache.backends.locmem.LocMemCache", "'LOCATION': 'h'", "redis://h", False),
    ],
)
def test_the_check_warns_of_a_cache_in_the_database_of_the_locks(check, backend, more, url, shared):
    _, ids, said = check(
        settings=f"CELERY_REDISLOCK_URL = {url!r}\n"
        f"CACHES = {{'default': {{'BACKEND': 'django.core.cache.backends.dummy.DummyCache'}},"
        f" 'pages': {{'BACKEND': {backend!r}, {more}}}}}",
        more=("--tag", "redislock"),
    )
    assert ids == (["redislock.W010"] if shared else []), said
    assert ("Django's cache pages: its clear() flushes it" in said) is shared


def test_the_check_says_that_tasks_cannot_be_loaded_or_that_there_is_no_app(check):
    status, ids, said = check("import nothing_at_all")
    assert (status, ids) == (1, ["redislock.E002"])
    assert "ModuleNotFoundError: No module named 'nothing_at_all'" in said
    status, ids, said = check(app="")
    assert (status, ids) == (0, ["redislock.W008"])


def test_the_check_runs_by_its_tag_and_the_projects_other_checks_run_once(check):
    assert check(more=("--tag", "redislock")) == (0, [], "")
    told = """
    import sys
    from django.core.checks import register

    @register
    def told(app_configs, **kwargs):
        print("CHECKED", file=sys.stderr)
        return []
    """
    assert check(app=dedent(APP) + dedent(told))[2].split() == ["CHECKED"]


def test_a_worker_whose_project_has_the_check_still_refuses_wrong_options(check):
    check(
        """
        @shared_task(base=LockedTask, lock_kee=["a"])
        def one(a): ...
        """
    )
    done = python("-m", "celery", "-A", "proj", "worker", "-P", "solo")
    assert done.returncode != 0
    assert "unknown option 'lock_kee'" in done.stdout + done.stderr


# -- the project's own tests ------------------------------------------------------------------


def test_a_test_of_the_project_needs_no_redis(monkeypatch):
    monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{free_port()}/0")
    done = python(f"{PROJECT}/manage.py", "test", "shop")
    assert done.returncode == 0, done.stderr
    assert "Ran 4 tests" in done.stderr


# -- transactions -----------------------------------------------------------------------------


@pytest.mark.parametrize("tests", ["Committed", "NeverCommitted"])
def test_a_lock_is_held_until_the_transaction_has_ended(monkeypatch, tests):
    """The tests of a project's, which Django runs."""
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.behaviour.apps.transactions_settings")
    done = python("-m", "django", "test", f"tests.behaviour.apps.django_transactions.{tests}")
    assert done.returncode == 0, done.stderr
    assert re.search(r"Ran \d\d? tests", done.stderr)


# -- the admin --------------------------------------------------------------------------------


def test_the_admin_shows_who_holds_the_rows_locks_and_takes_them_away():
    assert python(f"{PROJECT}/manage.py", "migrate", "--run-syncdb").returncode == 0
    done = python("-m", "tests.behaviour.apps.django_admin")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    held = r"product 1, queued, since \w+\.? \d+, \d{4}, .+, on \S+"
    assert said["column"][1:] == ["-", "-"]
    assert re.fullmatch(held, said["column"][0])
    assert said["exchanges"] == 1, "for the whole page"
    assert said["field"] == [said["column"][0]]
    assert said["new"] == ["-"]
    assert said["editable"] == said["column"]

    assert said["status"] == 200
    assert re.fullmatch(f"&lt;lamp&gt;: {held}", said["confirmation"][0])
    assert said["confirmation"][1] == "desk: free"
    assert said["still"], "nothing is taken away before it is confirmed"
    assert said["offered"] == [True, False]
    assert said["refused"], "a user who may only look takes nothing away"

    nothing = "nothing was taken away: the lock is free, or another run has it."
    assert said["late"] == [f"<lamp>: {nothing}", f"desk: {nothing}"]
    assert said["late_still"], "only the holder that was shown loses its lock"
    took = f"Took the lock away from its holder: {held}."
    assert re.fullmatch(f"<lamp>: {took}", said["broken"][0])
    assert said["broken"][1:] == [f"desk: {nothing}"]
    assert said["free"]
    told = [each for each in said["suspended"] if each.startswith("suspended by anna@host, until ")]
    assert [each.rpartition(", ")[2] for each in told] == ["moving"]
    ((who, row, text),) = said["log"]
    assert (who, row) == ("anna", "<lamp>")
    assert re.fullmatch(took, text)
    assert said["by"] == ["anna"]

    assert said["many"] == [200, 1100, 2, [True, True]], "1,100 rows were chosen at once"

    status, unfit, unfit_action = said["unfit"]
    assert status == 200, "the list is shown"
    assert unfit[0].startswith("unknown: ")
    assert "'product_id'" in unfit[0]
    assert unfit_action == [unfit[0].removeprefix("unknown: ")]

    away = "unknown: the lock server does not answer"
    assert said["away"] == [200, [away] * 3], "the list works without Redis"
    assert len(said["away_action"]) == 1
    assert said["away_action"][0].startswith("The lock server does not answer:")


ADMIN = """
from django.contrib import admin
from django.contrib.auth.models import User
from celery_redislock.django import LockAdminMixin

admin.site.unregister(User)

@admin.register(User)
class UserAdmin(LockAdminMixin, admin.ModelAdmin):
    lock_task = "proj.tasks.{task}"
    list_display = ["username", "lock_holder"]
    {more}
"""
WITH_ADMIN = """
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = [
    "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes",
    "django.contrib.messages", "django.contrib.sessions", "celery_redislock.django", "proj",
]
"""
TWO_ARGUMENTS = """
@shared_task(base=LockedTask, lock_key=["account_id"])
def add(account_id, amount): ...
"""


@pytest.fixture
def check_admin(check: Any, tmp_path: Path) -> Any:
    """Runs `manage.py check` with an admin whose rows have this task."""

    def check_admin(
        task: str, tasks: str = "", settings: str = "", more: str = ""
    ) -> tuple[list[str], str]:
        (tmp_path / "proj").mkdir(exist_ok=True)
        (tmp_path / "proj/admin.py").write_text(ADMIN.format(task=task, more=more))
        _, ids, said = check(tasks, WITH_ADMIN + settings)
        return ids, said

    return check_admin


@pytest.mark.parametrize(
    ("task", "what"),
    [
        ("snyc", "unknown task 'proj.tasks.snyc'; did you mean proj.tasks.sync?"),
        ("plain", "'proj.tasks.plain' is no task with a lock"),
        ("add", "'amount'"),
    ],
)
def test_the_check_names_an_admin_whose_task_does_not_fit(check_admin, task, what):
    ids, said = check_admin(task, f"{TWO_ARGUMENTS}@shared_task\ndef plain(): ...")
    assert ids == ["redislock.E008"], said
    assert what in said


def test_an_admin_that_gives_more_arguments_is_accepted(check_admin):
    more = "lock_args = lambda self, obj: (obj.pk, 0)"
    ids, said = check_admin("add", TWO_ARGUMENTS, more=more)
    assert ids == [], said


# -- the page of locks ------------------------------------------------------------------------

USERS = """
import django; django.setup()
from django.contrib.auth.models import User
from django.test import Client
for name, is_staff in (("anna", True), ("guest", False)):
    client = Client()
    client.force_login(User.objects.create_user(name, is_staff=is_staff))
    print(client.cookies["sessionid"].value)
"""


@contextlib.contextmanager
def served(*arguments: str) -> Iterator[str]:
    """The URL of the example project, served by uvicorn."""
    port = free_port()
    command = ["-m", "uvicorn", *arguments, "--port", str(port), "--timeout-graceful-shutdown", "2"]
    server = subprocess.Popen([sys.executable, *command], cwd=ROOT)
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: answers(url), "it answers", 30)
        yield url
    finally:
        server.terminate()
        server.wait(20)


def answers(url: str) -> bool:
    try:
        return bool(httpx.get(f"{url}/admin/login/", timeout=5).status_code)
    except httpx.TransportError:
        return False


@pytest.fixture
def sessions() -> tuple[dict[str, str], dict[str, str]]:
    """The cookies of a user who is staff, and of one who is not."""
    assert python(f"{PROJECT}/manage.py", "migrate", "--run-syncdb").returncode == 0
    done = python("-c", USERS)
    assert done.returncode == 0, done.stderr
    staff, guest = ({"Cookie": f"sessionid={each}"} for each in done.stdout.split())
    return staff, guest


def test_the_page_of_locks_is_behind_the_projects_login(redis_server, sessions, label):
    staff, guest = sessions
    with served("shop.asgi:application") as url:
        unknown = httpx.get(f"{url}/locks/?a=1")
        assert unknown.status_code == 302
        assert unknown.headers["location"] == "/admin/login/?next=/locks/%3Fa%3D1"
        forged = {"Cookie": "sessionid=forged"}
        assert httpx.get(f"{url}/locks/", headers=forged).status_code == 302
        for path in ("api/locks", "api/changes", "static/page.js"):
            assert httpx.get(f"{url}/locks/{path}").status_code == 401
            assert httpx.get(f"{url}/locks/{path}", headers=guest).status_code == 403
        assert httpx.get(f"{url}/locks/", headers=guest).status_code == 403

        page = httpx.get(f"{url}/locks/", headers=staff)
        assert page.status_code == 200
        assert "page.js" in page.text
        with RedisLock(f"{redis_server.url}/{DB}", label):
            found = httpx.get(f"{url}/locks/api/locks", headers=staff).json()
            assert label in [each["name"] for each in found]
            assert label in httpx.get(f"{url}/locks/api/changes", headers=staff).text
        order = httpx.post(f"{url}/locks/api/locks/break", headers=staff)
        assert order.status_code == 403, "it only reads"

        for hostile in ({"Host": "evil.example"}, {**staff, "Host": "evil.example"}):
            assert httpx.get(f"{url}/locks/", headers=hostile).status_code == 400
        foreign = {**staff, "Origin": "http://evil.example"}
        assert httpx.get(f"{url}/locks/api/locks", headers=foreign).status_code == 403
        assert httpx.get(f"{url}/admin/", headers=staff).status_code == 200, "the project's own"

        logout = "import django; django.setup()\n"
        logout += "from django.contrib.sessions.models import Session\n"
        logout += "Session.objects.all().delete()\n"
        assert python("-c", logout).returncode == 0
        assert httpx.get(f"{url}/locks/api/changes", headers=staff).status_code == 401
