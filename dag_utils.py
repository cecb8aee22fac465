"""The only door to graphs: the recorded steps of whatever was loaded, the DAGs of GML files, critical paths.

- `load_steps`: the recorded steps of a job, whatever the system, as `StepGraph`s in a `Recording`
- `read_partitions`: what logs tell about a job's partitions
- `choose_step`: the row of a step by its number, or of the one of median length
- `critical_path`, `slack_ns`: what makes a step as long as it is, and the room of the rest
- `scopes_of`, `step_operations`: the same of each GPU, each worker and the job, in a step that is `examined`:
  of many ranks it need not be held whole; `longest_chain`: of a GPU's DAG
- `named_path`, `by_name`, `by_category`, `headline`, `records`: a path in words; `PATH`, `BY_NAME`: in tables
- `marked_events`: the timeline of a step with the path on it, as a trace; `step_timeline`: as a chart, whose
  boxes and stretches tables are about by `key_of` and `stretch_key`; `path_waterfall`, `waterfall`: its parts
- `mean_dags`, `longest_path`: average durations through the DAG of a GPU
"""

from __future__ import annotations

from dag.contracted_step import examined
from dag.critical_path import CriticalPath, critical_path, slack_ns
from dag.job_steps import LoadedSteps, choose_step, load_steps, read_partitions
from dag.marked_timeline import marked_events
from dag.mean_graph import mean_dags
from dag.model import Dag, LongestPath, longest_path
from dag.path_summary import BY_NAME, PATH, NamedPath, by_category, by_name, headline, named_path, records
from dag.rank_record import Partitions
from dag.scopes import OperationSlack, Scope, longest_chain, scopes_of, step_operations
from dag.step_graph import Recording, StepGraph
from dag.step_timeline import key_of, path_waterfall, step_timeline, stretch_key, waterfall

__all__ = [
    "BY_NAME", "PATH", "CriticalPath", "Dag", "LoadedSteps", "LongestPath",
    "NamedPath", "OperationSlack", "Partitions", "Recording", "Scope", "StepGraph", "by_category", "by_name",
    "choose_step", "critical_path", "examined", "headline", "key_of",
    "load_steps", "longest_chain", "longest_path", "marked_events", "mean_dags", "named_path",
    "path_waterfall", "read_partitions", "records", "scopes_of", "slack_ns", "step_operations",
    "step_timeline", "stretch_key", "waterfall",
]  # fmt: skip
