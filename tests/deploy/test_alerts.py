"""Each alert fires on what it is for, and is silent on what is all right; Prometheus judges."""

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.parts import ROOT

RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"
MINUTES = 60  # samples, one a minute
Series = dict[str, str]


def counters(name: str, bad: int, good: int, labels: tuple[str, str]) -> Series:
    """Two counters that grow by so many a minute."""
    return {
        f"{name}{{{labels[0]}}}": f"0+{bad}x{MINUTES}",
        f"{name}{{{labels[1]}}}": f"0+{good}x{MINUTES}",
    }


def buckets(name: str, bound: float, slow: int, more: str = "") -> Series:
    """Of a hundred observations a minute, so many take longer than the bound (seconds)."""
    return {
        f'{name}{{{more}le="{bound}"}}': f"0+{100 - slow}x{MINUTES}",
        f'{name}{{{more}le="{bound * 4}"}}': f"0+100x{MINUTES}",
        f'{name}{{{more}le="+Inf"}}': f"0+100x{MINUTES}",
    }


def gauge(name: str, value: float) -> Series:
    return {name: f"{value}x{MINUTES}"}


CALLS = ('kind="call",outcome="error"', 'kind="call",outcome="ok"')
TURNS = ('kind="model",outcome="error"', 'kind="model",outcome="ok"')
HTTP = ('status="503"', 'status="200"')
CALL = 'kind="call",'
LOOP = 'instance="web-1:8000",'
# Alert: what is seen when it must fire, and the most of it that is still all right.
CASES: dict[str, tuple[Series, Series]] = {
    "BonobotDown": (
        gauge('up{job="bonobot",instance="web-2:8000"}', 0),
        gauge('up{job="bonobot"}', 1),
    ),
    "BonobotBeatMissing": (gauge("other", 1), gauge("bonobot_rows_readable", 1)),
    "BonobotTwoBeats": (
        gauge('bonobot_rows_readable{instance="a"}', 1)
        | gauge('bonobot_rows_readable{instance="b"}', 1),
        gauge('bonobot_rows_readable{instance="a"}', 1),
    ),
    "BonobotDatabaseAway": (gauge("bonobot_rows_readable", 0), gauge("bonobot_rows_readable", 1)),
    "BonobotNoWorker": (
        gauge('bonobot_runners{state="alive"}', 0),
        gauge('bonobot_runners{state="alive"}', 1),
    ),
    "BonobotSessionsWait": (
        gauge('bonobot_waiting_seconds{queue="sessions"}', 61),
        gauge('bonobot_waiting_seconds{queue="sessions"}', 60),
    ),
    "BonobotQueueLate": (
        gauge('bonobot_queue_seconds{queue="discovery"}', 61),
        gauge('bonobot_queue_seconds{queue="discovery"}', 60),
    ),
    "BonobotChecksLate": (
        gauge('bonobot_waiting_seconds{queue="checks"}', 301),
        gauge('bonobot_waiting_seconds{queue="checks"}', 300),
    ),
    "BonobotNoticesLate": (
        gauge('bonobot_waiting_seconds{queue="notices"}', 301),
        gauge('bonobot_waiting_seconds{queue="notices"}', 300),
    ),
    "BonobotApprovalsWait": (
        gauge('bonobot_waiting_seconds{queue="approvals"}', 14_401),
        gauge('bonobot_waiting_seconds{queue="approvals"}', 14_400),
    ),
    "BonobotLeasesLapsed": (
        gauge('bonobot_leases{kind="session",state="lapsed"}', 1),
        gauge('bonobot_leases{kind="session",state="held"}', 9),
    ),
    "BonobotServersFailing": (
        gauge('bonobot_servers{status="needs_reauth"}', 1),
        gauge('bonobot_servers{status="connected"}', 9),
    ),
    "BonobotCallsFail": (
        counters("bonobot_calls_total", 21, 79, CALLS),
        counters("bonobot_calls_total", 20, 80, CALLS)
        | counters("bonobot_calls_total", 9, 1, TURNS),
    ),
    "BonobotModelsFail": (
        counters("bonobot_calls_total", 21, 79, TURNS),
        counters("bonobot_calls_total", 20, 80, TURNS)
        | counters("bonobot_calls_total", 9, 1, CALLS),
    ),
    "BonobotRefusalsSurge": (
        {'bonobot_refusals_total{code="policy_denied"}': f"0+61x{MINUTES}"},
        {'bonobot_refusals_total{code="policy_denied"}': f"0+60x{MINUTES}"},
    ),
    "BonobotCallsSlow": (
        buckets("bonobot_call_seconds_bucket", 10, 6, CALL),
        buckets("bonobot_call_seconds_bucket", 10, 5, CALL),
    ),
    "BonobotAuditSlow": (
        buckets("bonobot_admission_seconds_bucket", 1, 2),
        buckets("bonobot_admission_seconds_bucket", 1, 1),
    ),
    "BonobotLoopLags": (
        buckets("bonobot_loop_lag_seconds_bucket", 0.25, 2, LOOP),
        buckets("bonobot_loop_lag_seconds_bucket", 0.25, 1, LOOP),
    ),
    "BonobotRequestsFail": (
        counters("bonobot_http_requests_total", 2, 98, HTTP),
        counters("bonobot_http_requests_total", 1, 99, HTTP),
    ),
    "BonobotBudgetsSpent": (
        gauge('bonobot_budgets{state="spent"}', 1),
        gauge('bonobot_budgets{state="open"}', 9),
    ),
}


def case(alert: str, series: Series, firing: bool) -> dict[str, object]:
    """Return a case of Prometheus's own tests: whether the alert fires after an hour."""
    query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > 0 or vector(0)'
    given = [{"series": name, "values": values} for name, values in series.items()]
    # It counts as firing where somebody is told, whatever the labels of the alert are.
    wanted = [{"labels": "{}", "value": 1 if firing else 0}]
    return {
        "name": f"{alert}, {'firing' if firing else 'silent'}",
        "interval": "1m",
        "input_series": given,
        "promql_expr_test": [
            {"expr": f"clamp_max({query}, 1)", "eval_time": "60m", "exp_samples": wanted}
        ],
    }


def test_every_alert_has_test_cases() -> None:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    assert set(CASES) == {rule["alert"] for group in groups for rule in group["rules"]}


@pytest.mark.promtool
def test_alerts_fire_exactly_in_their_cases(tmp_path: Path) -> None:
    written = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            case(alert, series, firing)
            for alert, pair in CASES.items()
            for series, firing in zip(pair, (True, False), strict=True)
        ],
    }
    file = tmp_path / "alerts.test.yaml"
    file.write_text(yaml.safe_dump(written), encoding="utf-8")
    ended = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
