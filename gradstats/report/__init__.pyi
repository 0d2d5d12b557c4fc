from .gallery import write_gallery as write_gallery
from .page import write_report as write_report
from .sweeps import SweepResult as SweepResult
from .sweeps import read_sweep as read_sweep
