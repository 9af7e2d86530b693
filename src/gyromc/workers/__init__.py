"""Where tasks are computed: in this process (`Here`), in several on this machine (`Processes`), or on a Dask cluster (`Cluster`).

Input: `WorkerTask`s, each a function of a module with its arguments. Output: their results, one by one as they are finished. All
three have the one method of `Place`. The caller stores the results: workers need no disk that they share with it.
"""

from gyromc.workers.cluster import Cluster
from gyromc.workers.here import Here
from gyromc.workers.processes import Processes, fastest
from gyromc.workers.tasks import Place, TaskError, WorkerTask

__all__ = ["Cluster", "Here", "Place", "Processes", "TaskError", "WorkerTask", "fastest"]
