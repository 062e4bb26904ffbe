"""How one launch runs on one GPU: tasks on SMs, demand on pipelines, bound and analytic time."""

from tilecast.execution.analytic import Analysis, Once, Placement, Priced, analyse, price
from tilecast.execution.fitted import Constants, constants
from tilecast.execution.protocol import Protocol
from tilecast.execution.tasks import TaskSet

__all__ = ["Analysis", "Constants", "Once", "Placement", "Priced", "Protocol", "TaskSet", "analyse", "constants", "price"]
