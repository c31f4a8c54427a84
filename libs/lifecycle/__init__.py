"""The life of a process: settings to start with, tasks that are owned, health, signals, drain."""

from libs.lifecycle.api import Build, Parts, Service
from libs.lifecycle.health import HealthServer, Readiness
from libs.lifecycle.process import run
from libs.lifecycle.tasks import Tasks

__all__ = ["Build", "HealthServer", "Parts", "Readiness", "Service", "Tasks", "run"]
