"""Migration: a store rewritten so that everything in it is at the code's current versions, into a new directory."""

from tailfold.engine.migration.plan import Failure, Plan
from tailfold.engine.migration.report import Report
from tailfold.engine.migration.rewriting import Schema
from tailfold.engine.migration.run import migrate, migrate_backend

__all__ = ["Failure", "Plan", "Report", "Schema", "migrate", "migrate_backend"]
