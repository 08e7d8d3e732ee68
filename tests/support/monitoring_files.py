"""Paths of the Prometheus rules and the Grafana dashboard in deploy/."""

from __future__ import annotations

from tests.conftest import REPOSITORY

ALERT_RULES = REPOSITORY / "deploy" / "prometheus" / "alerts.yml"
ALERT_RULES_TEST = ALERT_RULES.with_name("alerts_test.yml")
DASHBOARD = REPOSITORY / "deploy" / "grafana" / "dashboard.json"
