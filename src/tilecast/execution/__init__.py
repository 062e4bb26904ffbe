"""How one launch runs on one GPU: tasks on SMs, demand on pipelines, bound and analytic time."""

from tilecast.execution.analytic import Account, Analysis, Once, Placement, analyse
from tilecast.execution.fitted import Constants, constants
from tilecast.execution.protocol import Protocol
from tilecast.execution.tasks import TaskSet

__all__ = ["Account", "Analysis", "Constants", "Once", "Placement", "Protocol", "TaskSet", "analyse", "constants"]
