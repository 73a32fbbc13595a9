"""Training in simulated time: workers, links and servers as queues, driven by the same policies as running jobs.

`simulate` is the way in; what it takes and gives are frozen descriptions:

- `setting`: `Worker`, `Mode`, `Cluster`, `Until`, and how gradients travel;
- `sources`, `recorded`, `scenarios`: where workers' own times come from;
- `training`: real gradients, or the noise-scale model for large sweeps;
- `orders`: what a manager of the cluster sees and may do while jobs run;
- `history`: what came of it.
"""

from starprof.simulation.control import Controller, Predictor, Seen, View
from starprof.simulation.history import Evaluation, History, Iterations, Step
from starprof.simulation.job import Job
from starprof.simulation.orders import (
    ClusterSeen,
    Delay,
    Group,
    JobSeen,
    Manager,
    MoveShard,
    MoveWorker,
    Order,
    Pace,
)
from starprof.simulation.setting import (
    AllReduce,
    Change,
    Cluster,
    Free,
    Link,
    Mode,
    Node,
    ParameterServer,
    Until,
    Worker,
)
from starprof.simulation.simulate import simulate, simulate_jobs
from starprof.simulation.sources import Episodes, Exponential, HeavyTailed, Rotating, Source, Steady
from starprof.simulation.training.noise_scale import NoiseScale
from starprof.simulation.training.real import Data, RealTraining

__all__ = [
    "AllReduce",
    "Change",
    "Cluster",
    "ClusterSeen",
    "Controller",
    "Data",
    "Delay",
    "Episodes",
    "Evaluation",
    "Exponential",
    "Free",
    "Group",
    "HeavyTailed",
    "History",
    "Iterations",
    "Job",
    "JobSeen",
    "Link",
    "Manager",
    "Mode",
    "MoveShard",
    "MoveWorker",
    "Node",
    "NoiseScale",
    "Order",
    "Pace",
    "ParameterServer",
    "Predictor",
    "RealTraining",
    "Rotating",
    "Seen",
    "Source",
    "Steady",
    "Step",
    "Until",
    "View",
    "Worker",
    "simulate",
    "simulate_jobs",
]
