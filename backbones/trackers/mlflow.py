"""MLflow: a file store in OUT/mlruns, or where $MLFLOW_TRACKING_URI points. $MLFLOW_EXPERIMENT_NAME is obeyed."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from backbones.trackers.tracker import Ending, TrackedRun, Tracker, project

FOLDER = "mlruns"
RUN_ID = "transfer.run_id"
_PARAMETERS_AT_ONCE, _LONGEST_PARAMETER = 100, 500
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class MLflow(Tracker):
    """Writes through a client of its own, so that a notebook's active run stays as it is. A resumed run is found by its
    tag `transfer.run_id`."""

    def __init__(self, run: TrackedRun):
        self.client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or _file_store(run.folder))
        name = project("MLFLOW_EXPERIMENT_NAME")
        experiment = self.client.get_experiment_by_name(name)
        place = experiment.experiment_id if experiment else self.client.create_experiment(name)
        earlier = self.client.search_runs([place], filter_string=f"tags.`{RUN_ID}` = '{run.run_id}'", max_results=1)
        if earlier:
            self.run_id = earlier[0].info.run_id
            self.client.update_run(self.run_id, status="RUNNING")
            return
        tags = {RUN_ID: run.run_id, **run.tags}
        self.run_id = self.client.create_run(place, run_name=run.run_id, tags=tags).info.run_id
        parameters = [Param(name, str(value)[:_LONGEST_PARAMETER]) for name, value in run.options.items()]
        for start in range(0, len(parameters), _PARAMETERS_AT_ONCE):
            self.client.log_batch(self.run_id, params=parameters[start : start + _PARAMETERS_AT_ONCE])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers at this step."""
        now = int(time.time() * 1000)
        self.client.log_batch(self.run_id, metrics=[Metric(name, value, now, step) for name, value in values.items()])

    def attach(self, record: Path, scores: Mapping[str, float], outcome: str) -> None:
        """Log the scores as metrics, the outcome as a tag and the record as an artifact."""
        self.log(0, {f"score/{name}": value for name, value in scores.items()})
        self.client.set_tag(self.run_id, "outcome", outcome)
        self.client.log_artifact(self.run_id, str(record))

    def close(self, ending: Ending) -> None:
        """Set the status of the run."""
        self.client.set_terminated(self.run_id, _STATUS[ending])


def _file_store(folder: Path) -> str:
    # MLflow 3 refuses new file stores unless this is set; a database would not do on a cluster's shared disk
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return (folder.parent / FOLDER).resolve().as_uri()


TRACKER = MLflow
