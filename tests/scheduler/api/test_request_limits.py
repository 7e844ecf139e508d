"""Requests about jobs, queues, reservations and quotas bound each text as the column that keeps it does."""

from __future__ import annotations

from typing import Final

import pytest
from django.db import models
from rest_framework import serializers

from quotas.api import budgets, grants, ledger, lines
from quotas.models import Budget, Grant, LedgerEntry, Quota
from scheduler.api import datasets, jobs, reservations
from scheduler.api import queues as queue_api
from scheduler.models import Dataset, Job, Queue, Reservation
from scheduler.services.submission.job_spec import FIELDS
from scheduler.services.planning import preview
from scheduler.web import submit
