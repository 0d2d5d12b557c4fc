from .log import Log as Log
from .log import read_log as read_log
from .table import Rollouts as Rollouts
from .table import read_rollouts as read_rollouts
from .trainer_dumps import read_trl_completions as read_trl_completions
from .trainer_dumps import read_verl_rollouts as read_verl_rollouts
